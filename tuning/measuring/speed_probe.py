"""How fast the machine is while others race, against when it was profiled.

A plan promises speeds at the pace of its surfaces. A shared or warm machine has another pace a minute later, and not
the same for all forwards: a lack of arithmetic slows large ones more. So a gauge takes its turns in the race and times
one forward that matters, in visits as the profiler does, for about as long as others decode. The mean counts, as in the
plan: what stalls the machine slows decoding, too.

A drafter's forwards read fewer bytes and multiply less than the target's: where neighbours take the memory's bandwidth,
forwards of one token slow by more than a verification. So one of each model that drafts is gauged, too.

Where trees differ from round to round, plain rounds and those of the largest tree are gauged, each by its share. Sizes
between are seldom timed by a profile: they cost what lies between their neighbours, and a kernel's edge does not.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ...planner.plans.plan import PlanCell
from ...planner.pricing.cells import Cell
from ...planner.pricing.cost import drafted_tables
from ...profiler.clock import Clock, clock_for, clock_in
from ...profiler.records.excess import STALL
from ...profiler.records.surface import LatencySurface
from ...profiler.repeats import SETTLED
from ...runtime.models.forward import CausalModel
from ...runtime.shapes import ForwardShapes
from ...runtime.shapes.runner import room_of

TURN_MS = 60.0  # of visits in a turn: one of 10 ms would meet another mood than the turns beside it
CALLS = 4  # timed in a turn at least, as one visit or as several


def gauged_sizes(cell: PlanCell) -> dict[int, float]:
    """Return tokens in the trees to gauge, and the share of rounds each counts for; the shares' sum is 1.

    These are plain rounds and the largest tree. Their mean time is that of the plan's verifications, as it was priced.
    """
    most, average_ms = cell.policy.max_verify_tokens, cell.prediction.verify_ms
    if not cell.run_ms or cell.policy.kind == "resumed":
        return {most: 1.0}
    least_ms, most_ms = cell.run_ms[1], cell.run_ms[most]
    share = min(max((average_ms - least_ms) / (most_ms - least_ms), 0.0), 1.0) if most_ms > least_ms else 1.0
    return {nodes: own for nodes, own in ((1, 1.0 - share), (most, share)) if own > 0.0}


class ForwardProbe:
    """Someone in a race who decodes nothing: it times one forward, whatever its share of work."""

    def __init__(
        self,
        model: CausalModel,
        role: str,
        *,
        batch: int,
        context: int,
        tokens: int,
        profiled_ms: float,
        clock: Clock | None = None,
    ) -> None:
        """Prepare a forward of `tokens` a sequence, which took `profiled_ms` when it was profiled."""
        shapes = ForwardShapes(
            model,
            identity="gauge",
            dtype=str(model.dtype),
            role=role,
            slots=batch,
            capacity=room_of(role, context, tokens),
        )
        self.name = f"gauge of {tokens} tokens" if role == "verify" else f"gauge of a {role} of {tokens} tokens"
        self._batch, self.profiled_ms = batch, profiled_ms
        self._call, self._wait = shapes.prepare(batch, context, tokens), shapes.wait
        own = clock_for(model.device.type, model.device.index or 0)
        self._clock = clock or clock_in(own, model.regime)
        self._ms: list[float] = []

    def advance(self, share: float) -> None:
        """Visit the forward a few times, behind one untimed call: right behind another's turn it is slower."""
        self._call()
        self._wait()
        fewest = max(CALLS // SETTLED.timed(self.profiled_ms), 1)
        visits = max(round(TURN_MS / SETTLED.visit_ms(self.profiled_ms)), fewest)
        self._ms += [SETTLED.time_ms(self._call, self._clock, self.profiled_ms) for _ in range(visits)]

    @property
    def tokens_per_s(self) -> float:
        """The speed of decoding if a round were this forward alone and yielded one token."""
        return 1e3 * self._batch / self.mean_ms

    @property
    def speed(self) -> float:
        """The machine's pace in this race over its pace when it was profiled: below 1 it is slower now."""
        return self.profiled_ms / self.mean_ms

    @property
    def mean_ms(self) -> float:
        """What a call took in this race."""
        longest = STALL * statistics.median(self._ms)
        return statistics.fmean(min(ms, longest) for ms in self._ms)


class SpeedProbe(ForwardProbe):
    """The probe of the forward that verifies a tree in a cell."""

    def __init__(self, cell: PlanCell, target: CausalModel, nodes: int, clock: Clock | None = None) -> None:
        """Prepare the forward of `nodes` tokens, root included; 1 is a plain round.

        So it is where the cell knows no other forward's time (older plans), or verifies from an exit's states.
        """
        size = nodes if cell.run_ms and cell.policy.kind != "resumed" else 1
        super().__init__(
            target,
            "verify",
            batch=cell.batch,
            context=cell.context,
            tokens=cell.run_tokens[size],
            profiled_ms=cell.run_ms[size] if cell.run_ms else cell.plain.verify_ms,
            clock=clock,
        )


def draft_probes(
    cell: PlanCell, models: Mapping[str, CausalModel], surfaces: Mapping[str, LatencySurface]
) -> list[tuple[ForwardProbe, float]]:
    """Return a probe of one token for each model that drafts in a cell, and its forwards in a round.

    Both go by name. Forwards are the predicted time of drafting over that of one; several models share it equally.
    A model whose forward of one token was not profiled in its regime is left out.
    """
    place = Cell(batch=cell.batch, context=cell.context)
    timed = {
        name: surfaces[name]
        for name in cell.drafters
        if name in models and name in surfaces and models[name].regime == surfaces[name].regime
    }
    found = []
    for name, table in drafted_tables(timed, place, excess=1.0)[0].items():
        ms = float(table.row(cell.context)[1])
        probe = ForwardProbe(models[name], "draft", batch=cell.batch, context=cell.context, tokens=1, profiled_ms=ms)
        found.append((probe, cell.prediction.draft_ms / ms))
    return [(probe, forwards / len(found)) for probe, forwards in found]


def pace_of(gauges: Sequence[tuple[ForwardProbe, float]]) -> float:
    """Return the machine's pace by several forwards, each with how often a round runs it."""
    return sum(one.profiled_ms * share for one, share in gauges) / sum(one.mean_ms * share for one, share in gauges)
