"""Prices of given policies in every cell of a plan, for a choice among those that an engine can express.

They are priced like candidates of a plan: by replay on the recorded texts and the measured surfaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import PlanError
from ..inputs import PlanInputs
from ..lockstep import replay_results
from ..plans.objective import LatencyBound
from ..plans.schedule import Place
from ..pricing.cells import Cell
from ..records.results import PositionResults
from ..replay.rehearsal import Rehearsal
from ..replay.shortened import shortened
from ..strategies import REGISTRY, TreePolicy
from ..strategies.base import Strategy
from ..strategies.stack import StackPolicy
from .contest import CellSearch, contest_of
from .stack_search import StackSearch

Staged = tuple[TreePolicy, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a policy yields in a cell."""

    tokens_per_s: float  # of all sequences, without optimism taken off
    keeps_bound: bool  # True where there is no bound


def prices(
    inputs: PlanInputs,
    cells: Sequence[Cell],  # from `cells_of`
    staged: Sequence[Staged],  # policies with their drafters: None for plain decoding, LOOKUP where the text drafts
    bound: LatencyBound | None = None,
    new_tokens: int | None = None,  # of an answer, where whole requests are priced; None for decoding alone
    *,
    cached_share: float = 0.0,  # of a prompt, not read again
    is_padded: bool = False,
) -> dict[Staged, dict[Place, Price]]:
    """Return the prices of policies by cell; none, and no reason, where a policy cannot be priced.

    Args:
        is_padded: whether every round verifies a policy's full size, as some engines do, not what it drafted. Not for
            CAST and stacks, which no engine has.

    Raises:
        PlanError: the inputs have no such drafter, or fewer texts than slots.
        MeasurementError: a batch was not measured.
    """
    rehearsal = Rehearsal(shortened(inputs, new_tokens))
    contests = {
        (cell.batch, cell.context): contest_of(rehearsal.inputs, cell, bound, new_tokens, cached_share)
        for cell in cells
    }
    found: dict[Staged, dict[Place, Price]] = {one: {} for one in staged}
    for one, drafted in _results(rehearsal, staged):
        results = _padded(one[0], drafted) if is_padded else drafted
        replays = {batch: replay_results(results, rehearsal.rows, batch) for batch in {cell.batch for cell in cells}}
        for place, contest in contests.items():
            contest.enter(*one, replays[place[0]])
            _note(found[one], place, contest, one)
    stacks = StackSearch(rehearsal, seed=0)
    for policy, drafter in staged:
        for place, contest in contests.items():
            if policy.is_of_one_cell:
                contest.enter(policy, drafter, rehearsal.replay(policy, drafter, place[0]))
                _note(found[policy, drafter], place, contest, (policy, drafter))
            elif isinstance(policy, StackPolicy):
                stacks.enter(contest, policy)
                _note(found[policy, drafter], place, contest, (policy, drafter))
    return found


def _results(rehearsal: Rehearsal, staged: Sequence[Staged]) -> Iterator[tuple[Staged, PositionResults]]:
    """Yield what each policy does at every position, if it was recorded; grids of one kind come out of one pass."""
    groups: dict[tuple[str, str | None], list[TreePolicy]] = {}
    for policy, drafter in dict.fromkeys(staged):
        groups.setdefault((policy.kind, drafter), []).append(policy)
    for (kind, drafter), own in groups.items():
        together = [own] if REGISTRY[kind].sweeps_together else [[policy] for policy in own]
        for variants in together:
            yield from _swept(rehearsal, variants, drafter)


def _swept(
    rehearsal: Rehearsal, variants: Sequence[TreePolicy], drafter: str | None
) -> Iterator[tuple[Staged, PositionResults]]:
    strategy: type[Strategy] = REGISTRY[variants[0].kind]
    if strategy.source == "models" or strategy.is_of_one_cell:
        return  # has no results of single positions
    try:
        recorded = rehearsal.recorded(variants[0], drafter)
        for found in strategy.sweep(recorded, variants):
            yield (found.policy, drafter), found.results
    except PlanError:
        if strategy.sweeps_together:
            raise


def _padded(policy: TreePolicy, results: PositionResults) -> PositionResults:
    """Return results with every tree as large as the policy allows; padding is never accepted."""
    return replace(results, sizes=np.full_like(results.sizes, policy.max_verify_tokens))


def _note(found: dict[Place, Price], place: Place, contest: CellSearch, staged: Staged) -> None:
    priced = contest.place_of(*staged)
    if priced is not None:
        found[place] = Price(tokens_per_s=contest.priced[priced].tokens_per_s, keeps_bound=contest.keeps_bound(priced))
