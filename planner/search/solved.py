"""What the cells of a plan found, each by itself and then by what its neighbours took.

A search finds other knobs in every cell, so cells that tie with each other's choice do not know it. So each cell prices
what its neighbours, and all cells of its batch, would take by themselves before the schedule looks for what they agree
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..plans.schedule import Place, Way, neighbours_of
from ..policies import CastPolicy, LossyPolicy, PlainPolicy, StackPolicy
from ..pricing.cost import Floats
from ..replay.rehearsal import Rehearsal
from ..stacks.search import StackSearch
from .candidate import Candidate
from .choice import Ballot, ballot_of
from .contest import Contest
from .planned import Beside
from .solved_cast import SMALLEST, on_costs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolvedCell:
    """What one cell found.

    Attributes:
        contest: all that was priced.
        ballot: which of it is as good as the best.
        beside: what the cell's plan tells besides, whichever of these is taken.
        notes: what a reader must know of the cell, whatever is taken.
    """

    contest: Contest
    ballot: Ballot
    beside: Beside
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        """Batch and context."""
        cell = self.contest.costs.cell
        return cell.batch, cell.context

    @property
    def first(self) -> tuple[Candidate, int]:
        """What the cell would take by itself, and the half of the texts that it was searched on."""
        place = self.ballot.near[0]
        return self.contest.priced[place], self.contest.searched_on[place]

    @property
    def ways(self) -> list[Way]:
        """What is as good as the best, as neighbours compare it: of CAST, whose costs are a cell's own, its code."""
        near = [self.contest.priced[place] for place in self.ballot.near]
        return [(_compared(one), one.drafter) for one in near]


def with_neighbours(
    cells: Sequence[SolvedCell], rehearsal: Rehearsal, stacks: StackSearch, weights: Floats
) -> list[SolvedCell]:
    """Return the cells after each has priced what its neighbours, and others of its batch, would take by themselves.

    Args:
        cells: solved, their contests not yet of what the others found; these are added to.
        rehearsal: of the recordings.
        stacks: likewise.
        weights: (resamples, texts), how often each text is drawn.
    """
    firsts = {one.place: one.first for one in cells}
    around = neighbours_of(list(firsts))
    found = []
    for one in cells:
        before = len(one.contest.priced)
        batch, _ = one.place
        for other in dict.fromkeys([*around[one.place], *(place for place in firsts if place[0] == batch)]):
            _enter(one.contest, *firsts[other], rehearsal, stacks)
        is_more = len(one.contest.priced) > before
        found.append(replace(one, ballot=ballot_of(one.contest, weights)) if is_more else one)
    return found


def _enter(contest: Contest, taken: Candidate, half: int, rehearsal: Rehearsal, stacks: StackSearch) -> None:
    """Price another cell's choice unless it was; what is lossy runs at its own batch alone."""
    policy, drafter = taken.policy, taken.drafter
    if isinstance(policy, LossyPolicy | PlainPolicy) or contest.find(policy, drafter) is not None:
        return
    if isinstance(policy, StackPolicy):
        stacks.enter(contest, policy, half)
    elif isinstance(policy, CastPolicy) and contest.costs.verify.most_tokens < SMALLEST:
        contest.refuse(policy, drafter, f"a verify of {SMALLEST} tokens was not measured; profile larger ones")
    elif not contest.lacks_times(policy, drafter):
        own = on_costs(policy, contest.costs, drafter or "") if isinstance(policy, CastPolicy) else policy
        contest.enter(own, drafter, rehearsal.replay(own, drafter, contest.batch), half)


def _compared(one: Candidate) -> object:
    return one.policy.code if isinstance(one.policy, CastPolicy) else one.policy
