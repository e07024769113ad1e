"""What a plan says of host times that were not timed in rounds like its own."""

from __future__ import annotations

from collections.abc import Sequence

from ..planner.inputs import DrafterInputs
from ..profiler.records.overhead import RoundOverhead, beside
from ..profiler.records.role import CAPTURED, EAGER, running_of


def note_of_rounds(overhead: RoundOverhead, temperature: float) -> tuple[str, ...]:
    """Return a note where host times are known of rounds of the other kind alone, greedy or sampled."""
    ways = {sample.is_sampled for sample in overhead.at_temperature(temperature).samples}
    if (temperature == 0.0) not in ways:
        return ()
    timed, wanted = ("sampled", "greedy") if temperature == 0.0 else ("greedy", "sampled")
    return (
        f"the host's part of a round was timed in {timed} rounds and the plan is for {wanted} ones; run: spectune "
        f"profile --temperature {temperature:g}",
    )


def note_of_drafters(drafters: Sequence[DrafterInputs], overhead: RoundOverhead) -> tuple[str, ...]:
    """Return a note where drafters are priced by rounds that another one drafted, as in older profiles.

    Not on those that run eagerly beside a captured target, see `planner.pricing.cost.cell_costs`.
    """
    if overhead.regime == CAPTURED:
        drafters = [d for d in drafters if running_of(d.surface.regime) != EAGER]
    if len({d.surface.role for d in drafters}) < 2:
        return ()
    strangers = [d for d in drafters if not all(_tells_of(d, overhead, batch) for batch in overhead.timed_batches)]
    if not strangers:
        return ()
    timed = sorted({sample.role for sample in overhead.samples})
    priced = ", ".join(f"{d.name} ({d.surface.role})" for d in strangers)
    return (
        f"the host's part of drafted rounds was timed beside a drafter of role {', '.join(timed)} that is none of "
        f"{priced}, and prices these too; profile again, or run spectune validate where the plan drafts with one",
    )


def _tells_of(drafter: DrafterInputs, overhead: RoundOverhead, batch: int) -> bool:
    surface = drafter.surface
    return overhead.role_beside(batch, surface.role, surface.model) in (
        surface.role,
        beside(surface.role, surface.model),
    )
