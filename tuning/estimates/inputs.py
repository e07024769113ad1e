"""What a plan for a device that is not here is computed from: recorded traces, and surfaces computed for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...db.store import Store
from ...errors import RequestError
from ...planner.inputs import DrafterInputs, PlanInputs, with_weights
from ...planner.records.recording import Text, ends_of, texts_of
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.match import nearest
from ...profiler.records.model import ModelIdentity
from ...profiler.records.overhead import RoundOverhead, joined
from ...profiler.records.role import BLOCK, HEAD, SELF
from ...profiler.records.surface import LatencySurface
from ...runtime.models.formats import draft_role
from ..host_notes import note_of_rounds
from ..inputs import agreement, missing, named_trace, recorded_model, recorded_together
from ..parts import architecture_of, footprints_of
from ..positions import STRETCH, require_within_positions
from ..request import Identities, Models, PlanRequest
from .estimate import Estimate, EstimateRequest, estimate
from .host_time import UNKNOWN, borrowed_host_time, no_host_time

BATCHES = (1, 8)  # where no batches are asked for, as far as there are texts for them


def inputs_on_estimates(request: PlanRequest, store: Store) -> PlanInputs:
    """Return the store's traces with surfaces computed for the request's catalogued device, which are stored.

    Host time is that of the nearest measured device, or none; notes say which. Drafters that read the target's features
    are left out with a note: they are only ever measured.

    Raises:
        StoreError: there is no trace of the workload.
        RequestError: the configuration of a model is missing.
        DeviceError: the catalogue does not know the device.
        MeasurementError: the target fits on it in none of the shapes.
    """
    stretched = require_within_positions(request.target, request.contexts, STRETCH)
    traces = store.traces(request.target.key, request.workload, request.temperature)
    if not traces:
        raise missing(named_trace(request), request, store)
    together, left_out = recorded_together(traces)
    recorded = {trace.drafter_name: recorded_model(trace, request, store) for trace in with_weights(together)}
    beside = _beside_target(recorded, store)
    models = {name: model for name, model in recorded.items() if name not in beside}
    drafted = [trace for trace in together if trace.drafter_name in models]
    knots = _knots(texts_of(together[-1]))
    identities = Identities(target=request.target, drafters=models)
    done = estimate(_wanted(request, models, knots, together), store, identities)
    verify, *drafts = done.surfaces
    verify.require_ran()
    overhead, times, told = _host_time(request, verify, store)
    alone = tuple(_measured_alone(name) for name in beside)
    return PlanInputs(
        device=request.device,
        target=request.target,
        dtype=request.dtype,
        verify=verify,
        overhead=overhead.at_temperature(request.temperature),
        host_times=times,
        drafters=tuple(
            DrafterInputs(name=name, model=model, surface=surface, trace=trace)
            for (name, model), surface, trace in zip(models.items(), drafts, drafted, strict=True)
        ),
        texts=texts_of(together[-1]),
        workload=request.workload,
        temperature=together[-1].temperature,
        pairwise=agreement(together, drafted, request, store),
        footprints=footprints_of(request.target, models.values(), request.dtype),
        knots=knots,
        notes=(
            *(_origin(done), *stretched, *done.reasons, *done.assumptions, told, *left_out, *alone),
            *note_of_rounds(overhead, request.temperature),
        ),
    )


def _beside_target(models: Mapping[str, ModelIdentity], store: Store) -> list[str]:
    """Return the names of heads, exits and all else that reads its target, by their folders or timed roles."""
    timed = {row.model for row in store.surface_rows() if row.role in (HEAD, BLOCK, SELF)}
    return [
        name
        for name, model in models.items()
        if model.key in timed or (model.location and draft_role(Path(model.location)) != "draft")
    ]


def _measured_alone(name: str) -> str:
    return (
        f"{name} reads what the target computes on the way and does not compete: the forwards of such drafters are "
        "measured, not estimated"
    )


def _knots(texts: Sequence[Text]) -> tuple[int, ...]:
    """Return contexts to price rounds between: powers of two and ends of texts, whatever cells are requested."""
    first, last = ends_of(texts)
    return tuple(sorted({first, last} | {1 << power for power in range(last.bit_length())}))


def _wanted(
    request: PlanRequest,
    models: dict[str, ModelIdentity],
    knots: Sequence[int],
    traces: Sequence[AcceptanceTrace],
) -> EstimateRequest:
    for model in (request.target, *models.values()):
        if architecture_of(model) is None:
            raise RequestError(
                f"nothing can be computed for {model.name}, because its config.json is not at "
                f"{model.location or 'a known place'} as it was; put it there"
            )
    texts = len(traces[0].prompts)
    return EstimateRequest(
        models=Models(
            target=Path(request.target.location), drafters={name: Path(m.location) for name, m in models.items()}
        ),
        device=request.device.name,
        dtype=request.dtype,
        regime=request.regime or None,
        batches=request.batches or tuple(batch for batch in BATCHES if batch <= texts),
        contexts=tuple(sorted({*request.contexts, *knots})),
    )


def _host_time(
    request: PlanRequest, verify: LatencySurface, store: Store
) -> tuple[RoundOverhead, tuple[RoundOverhead, ...], str]:
    """Return the nearest device's host times for the target, their records at the request's temperature, and a note."""
    known = {}
    for device in store.devices():
        times = store.host_times(device.fingerprint, request.target.key, request.dtype, verify.regime)
        if times:
            known[device] = times
    near = nearest(request.device, list(known))
    if near is None:
        return no_host_time(verify), (), UNKNOWN
    measured = joined(known[near])
    asked = {*measured.at_temperature(request.temperature).samples}
    telling = tuple(each for each in known[near] if not asked.isdisjoint(each.samples))
    return borrowed_host_time(measured, verify), telling, f"the host time of rounds is that of {near.label}"


def _origin(done: Estimate) -> str:
    if done.efficiency is None:
        way = "from limits alone, which no forward undercuts"
    else:
        fitted = done.efficiency
        way = f"from {fitted.cells} cells of {fitted.device}, {fitted.regime}"
    return f"an estimate: every forward on {done.device.device.name} was computed {way}, none was measured"
