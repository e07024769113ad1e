"""Time the forwards of a family: the surface of the target, then of each drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..planner.inputs import BLOCK
from ..planner.recorded import texts_of
from ..planner.worth import DecisionWorth
from ..profiler.domain import Domain
from ..profiler.latency import measure
from ..profiler.protocols import MeasurementSink, ShapeRunner
from ..profiler.records.acceptance import AcceptanceTrace
from ..profiler.records.device import Device
from ..profiler.records.surface import LatencySurface
from ..runtime.models.drafter import role_of
from ..runtime.models.forward import CausalModel
from ..runtime.requests import Request
from ..runtime.shapes import room_of, runner_of
from .decoding import LOOKUP, Family
from .request import Identities, ProfileRequest
from .steps import Progress

VERIFY_TOKENS = 64  # of the target: EAGLE-2's published tree has 60
DRAFT_TOKENS = 24  # of a drafter: the widest layer, and what it reads to catch up with an accepted chain of 20
FULL_DRAFT_TOKENS = 64  # where everything is recorded: a layer of TALON's or OPT-Tree's published tree is that wide


def domains_of(request: ProfileRequest, requests: Sequence[Request]) -> tuple[Domain, ...]:
    """Return what is to be measured of the target, then of each drafter.

    Contexts default to where the texts begin and end.
    """
    shortest = min(len(r.prompt) for r in requests)
    longest = max(len(r.prompt) + r.max_new_tokens for r in requests)
    contexts = tuple(sorted(set(request.contexts or (shortest, longest))))
    drafted = FULL_DRAFT_TOKENS if request.record == "full" else DRAFT_TOKENS
    tokens = (VERIFY_TOKENS, *([drafted] * len(request.models.drafters)))
    batches = tuple(sorted(set(request.batches)))
    return tuple(Domain(batches=batches, contexts=contexts, most_tokens=most) for most in tokens)


def time_surfaces(
    request: ProfileRequest,
    family: Family,
    identities: Identities,
    domains: Sequence[Domain],
    *,
    device: Device,
    sink: MeasurementSink,
    traces: Sequence[AcceptanceTrace] = (),
    progress: Progress,
) -> tuple[LatencySurface, ...]:
    """Return the surface of the target, then of each drafter, in the family's order.

    Where there are traces, shapes that the best policies use are measured best.

    Raises:
        Interrupted: Ctrl-C; what was timed is in the sink.
        MeasurementError: the budget is too small for the first points.
    """
    longest = domains[0].contexts[-1]
    runners = [runner_for(family.target, "verify", identities.target.key, request, domains[0], longest)]
    for (name, model), domain in zip(family.drafters.items(), domains[1:], strict=True):
        role = role_of(model)
        runners.append(runner_for(model, role, identities.drafters[name].key, request, domain, longest))
    return measure(
        runners,
        domains,
        device=device,
        budget_s=request.budget_s,
        sink=sink,
        seed=request.seed,
        held_out=request.held_out,
        value=_worth(domains[0], traces, list(family.drafters), _blocks(family)),
        progress=lambda share: progress("timing forwards", share),
    )


class Timed(Protocol):
    """What a runner needs to know of a request."""

    @property
    def regime(self) -> str:
        """How forwards run."""
        ...

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes."""
        ...


def runner_for(
    model: CausalModel, role: str, identity: str, request: Timed, domain: Domain, longest_context: int
) -> ShapeRunner:
    """Return the runner of one model in one role, with a cache for the domain's largest shape."""
    capacity = room_of(role, longest_context, domain.most_tokens)
    return runner_of(model, role, request.regime, identity=identity, slots=max(request.batches), capacity=capacity)


def _blocks(family: Family) -> set[int]:
    """Return the numbers of the surfaces of block drafters."""
    return {place for place, model in enumerate(family.drafters.values(), start=1) if role_of(model) == BLOCK}


def _worth(
    verify: Domain, traces: Sequence[AcceptanceTrace], names: Sequence[str], blocks: set[int]
) -> DecisionWorth | None:
    acceptance: dict[int, NDArray[np.float64]] = {}
    for trace in traces:
        if trace.drafter != LOOKUP:
            acceptance[1 + list(names).index(trace.drafter_name)] = trace.rank_acceptance()
    return DecisionWorth(0, acceptance, verify.contexts, texts_of(traces[0]), blocks) if traces else None


def by_name(surfaces: Sequence[LatencySurface], drafters: Mapping[str, object]) -> dict[str, LatencySurface]:
    """Return the drafters' surfaces by name."""
    return dict(zip(drafters, surfaces[1:], strict=True))
