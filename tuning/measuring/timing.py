"""Time the forwards of a family: the surface of the target, then of each drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...planner.inputs import BLOCK, SELF
from ...planner.pricing.worth import DecisionWorth
from ...planner.records.recording import texts_of
from ...planner.strategies.chain import LENGTHS
from ...profiler.design import AdaptiveDesign
from ...profiler.domain import Domain
from ...profiler.latency import measure
from ...profiler.protocols import Journal, MeasurementSink, ShapeRunner
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.model import ModelIdentity
from ...profiler.records.role import CAPTURED, EAGER, RESUME
from ...profiler.records.surface import LatencySurface
from ...profiler.session import TimingSettings
from ...runtime.batch.sequence import Request
from ...runtime.models.drafter import role_of
from ...runtime.models.formats import draft_role
from ...runtime.models.forward import CausalModel
from ...runtime.shapes import room_of, runner_of
from ..parts import FinishedWith, finished_surfaces
from ..prompts import positions_of
from ..request import Identities, ProfileRequest
from ..steps import Progress
from .decoding import LOOKUP, Family

VERIFY_TOKENS = 64  # of the target: EAGLE-2's published tree has 60
DRAFT_TOKENS = 24  # of a drafter: what it reads to catch up with an accepted chain of 20
RESUMED_TOKENS = 1 + max(LENGTHS)  # of a verification from an exit's states: only chains are
WIDE_DRAFT_TOKENS = 64  # a layer of TALON's or OPT-Tree's published tree is that wide


def domains_of(request: ProfileRequest, device: Device, requests: Sequence[Request]) -> tuple[Domain, ...]:
    """Return what to measure of the target, of each drafter, and of verifying from each exit's states.

    Contexts default to where the texts begin and end, within the target's positions. Drafters' forwards are wide where
    everything is recorded, and on a GPU, whose layers always have full width (`planner/strategies/base.py`).
    """
    shortest = min(len(r.prompt) for r in requests)
    longest = max(len(r.prompt) + r.max_new_tokens for r in requests)
    positions = positions_of(request.models.target)
    longest = min(longest, positions - 1) if positions else longest
    contexts = tuple(sorted(set(request.contexts or (shortest, longest))))
    drafted = WIDE_DRAFT_TOKENS if request.record == "full" else draft_tokens(device)
    tokens = (VERIFY_TOKENS, *([drafted] * len(request.models.drafters)))
    batches = tuple(sorted(set(request.batches)))
    rows = device.tile_rows(request.dtype)
    own = tuple(Domain(batches=batches, contexts=contexts, most_tokens=most, tile_rows=rows) for most in tokens)
    return (*own, *([resumed_domain(batches, contexts, rows)] * len(resuming(request))))


def draft_tokens(device: Device) -> int:
    """Return the most tokens per sequence that a drafter's forward is timed with."""
    return DRAFT_TOKENS if device.kind == "cpu" else WIDE_DRAFT_TOKENS


def resumed_domain(batches: tuple[int, ...], contexts: tuple[int, ...], tile_rows: int) -> Domain:
    """Return what is to be measured of verifications from an exit's states: chains of one token and more."""
    return Domain(batches=batches, contexts=contexts, least_tokens=2, most_tokens=RESUMED_TOKENS, tile_rows=tile_rows)


def resuming(request: ProfileRequest) -> list[str]:
    """Return the names of the drafters from whose states a verification continues: exits, beside targets that can."""
    if request.regime == CAPTURED:
        return []
    return [name for name, path in request.models.drafters.items() if draft_role(path) == SELF]


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTiming:
    """What is timed of a family on a device, and who receives its progress."""

    request: ProfileRequest  # with a budget
    identities: Identities
    domains: Sequence[Domain]  # as `domains_of` returns them
    device: Device
    progress: Progress


def time_surfaces(
    timing: FamilyTiming,
    family: Family,
    sink: MeasurementSink,
    *,
    traces: Sequence[AcceptanceTrace] = (),
    until: float = 1.0,
) -> tuple[LatencySurface, ...]:
    """Return the surfaces of the target, of each drafter, and of verifying from exits, in the family's order.

    With traces, shapes of the best policies are measured best. A sitting that leaves some budget returns none.
    Interrupted: Ctrl-C; what was timed is in the sink.
    """
    request, domains = timing.request, timing.domains
    assert request.budget_s is not None, "a profile chooses its budget before it times"
    worth = _worth(domains[0], traces, list(family.drafters), _blocks(family), resuming(request))
    return measure(
        runners_of(request, family, timing.identities, domains),
        domains,
        device=timing.device,
        budget_s=request.budget_s,
        sink=sink,
        design=AdaptiveDesign(domains, held_out=request.held_out, value=worth),
        session=TimingSettings(seed=request.seed, until=until),
        progress=lambda share: timing.progress("timing forwards", share),
    )


def runners_of(
    request: ProfileRequest, family: Family, identities: Identities, domains: Sequence[Domain]
) -> list[ShapeRunner]:
    """Return the runner of the target, then of each drafter, then of verifying from exits, in the family's order."""
    longest = domains[0].contexts[-1]
    runners = [runner_for(family.target, "verify", identities.target.key, request, domains[0], longest)]
    timed = [*((name, str(role_of(model))) for name, model in family.drafters.items())]
    timed += [(name, RESUME) for name in resuming(request)]
    for (name, role), domain in zip(timed, domains[1:], strict=True):
        key = identities.drafters[name].key
        runners.append(runner_for(family.drafters[name], role, key, request, domain, longest))
    return runners


class TimingRequest(Protocol):
    """What a runner needs to know of a request."""

    @property
    def regime(self) -> str:
        """How forwards run."""
        ...

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes."""
        ...

    @property
    def dtype(self) -> str:
        """Name of the weights' format."""
        ...


def runner_for(
    model: CausalModel, role: str, identity: str, request: TimingRequest, domain: Domain, longest_context: int
) -> ShapeRunner:
    """Return the runner of one model in one role, with a cache for the largest shape where there is memory for it."""
    capacity = room_of(role, longest_context, domain.most_tokens)
    return runner_of(
        model,
        role,
        request.regime,
        identity=identity,
        slots=max(request.batches),
        capacity=capacity,
        dtype=request.dtype,
    )


def _blocks(family: Family) -> set[int]:
    return {place for place, model in enumerate(family.drafters.values(), start=1) if role_of(model) == BLOCK}


def _worth(
    verify: Domain, traces: Sequence[AcceptanceTrace], names: Sequence[str], blocks: set[int], exits: Sequence[str]
) -> DecisionWorth | None:
    resumes = {1 + names.index(name): place for place, name in enumerate(exits, start=1 + len(names))}
    acceptance: dict[int, NDArray[np.float64]] = {}
    for trace in traces:
        if trace.drafter != LOOKUP:
            acceptance[1 + names.index(trace.drafter_name)] = trace.rank_acceptance()
    return DecisionWorth(0, acceptance, verify.contexts, texts_of(traces[0]), blocks, resumes) if traces else None


def by_name(surfaces: Sequence[LatencySurface], drafters: Mapping[str, object]) -> dict[str, LatencySurface]:
    """Return the drafters' surfaces by name."""
    return dict(zip(drafters, surfaces[1 : 1 + len(drafters)], strict=True))


def resumes_by_name(
    surfaces: Sequence[LatencySurface], drafters: Mapping[str, ModelIdentity]
) -> dict[str, LatencySurface]:
    """Return what verifying from an exit's states costs, by the exit's name."""
    found = {surface.model: surface for surface in surfaces if surface.role == RESUME}
    return {name: found[model.key] for name, model in drafters.items() if model.key in found}


FIRST, SECOND = 0.25, 0.5  # share of the budget spent before anything is recorded, and when all is


class TimingWindows:
    """The timing of a profile's forwards in sittings that continue each other; the last finishes it.

    Other regimes than eager are timed at a stretch, at the end: each sitting would compile or capture a shape again.
    """

    def __init__(self, timing: FamilyTiming, journal: Journal) -> None:
        """Take what is to be timed, and its journal; what an earlier run has finished stays as it is."""
        self._surfaces = finished_surfaces(journal)  # None before the last sitting
        self._timing, self._journal = timing, journal

    def sit(self, family: Family, until: float, traces: Sequence[AcceptanceTrace] = ()) -> None:
        """Time forwards until a share below 1 of the budget is spent; traces and errors as in `time_surfaces`."""
        if self._timing.request.regime == EAGER:
            self._timed(family, until, traces, ())

    def finish(
        self, family: Family, traces: Sequence[AcceptanceTrace], readings: Sequence[LatencySurface]
    ) -> tuple[LatencySurface, ...]:
        """Spend the rest of the budget, store all surfaces with those of reading prompts, and return them."""
        self._timed(family, 1.0, traces, readings)
        assert self._surfaces is not None, "the last sitting finishes them"
        return self._surfaces

    def _timed(
        self,
        family: Family,
        until: float,
        traces: Sequence[AcceptanceTrace],
        readings: Sequence[LatencySurface],
    ) -> None:
        if self._surfaces is not None:
            return
        sink = FinishedWith(self._journal, readings)
        own = time_surfaces(self._timing, family, sink, traces=traces, until=until)
        if until >= 1.0:
            self._surfaces = (*own, *readings)
