"""Cells of one plan: each is solved by itself, and a plan tells of what it takes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import Cell, cells_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import Solve, SolvedCell, solve
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.stack import StackPolicy, stack_name

from ..support.chain_traces import chain_prompt, trace_of
from ..support.synthetic import TARGET, Milliseconds, inputs, model
from .search.test_stack_search import family

DOUBTING = ("plain", "chain", "confident-chain")


def doubting(kinds: Sequence[str] = DOUBTING, draft_ms: Milliseconds = lambda *shape: 3.0) -> PlanInputs:
    """Return a dear drafter that knows when it errs, whose forwards cost the same behind any text."""
    recorded = trace_of(*(chain_prompt(lambda said: (2.0 * said - 1.0) ** (1 / 6), seed=seed, positions=60, depth=6)
                          for seed in range(6)))  # fmt: skip
    known = replace(recorded, target=TARGET.key, drafter=model("small").key, drafter_name="small")
    found = inputs(known, draft_ms=draft_ms)
    timed = tuple(sample for sample in found.overhead.samples if sample.kind in kinds)
    return replace(found, overhead=replace(found.overhead, samples=timed))


def solved(
    measured: PlanInputs, cells: Sequence[Cell], trials: int = 0, seed: int = 0
) -> tuple[Plan, list[SolvedCell]]:
    """Return a plan, and what each of its cells found."""
    kept = list[SolvedCell]()

    def keep(work: Solve, groups: Iterable[tuple[Cell, ...]]) -> Iterator[tuple[SolvedCell, ...]]:
        for group in groups:
            found = pickle.loads(pickle.dumps(work(group)))  # as from another process
            kept.extend(found)
            yield found

    options = SearchOptions(trials=trials, seed=seed)
    return solve(measured, cells, created="", spectune="", options=options, spread=keep), kept


def place_in(one: SolvedCell, policy: TreePolicy, drafter: str | None) -> int:
    place = one.contest.place_of(policy, drafter)
    assert place is not None
    return place


def test_cells_of_the_same_costs_decode_alike() -> None:
    plan, found = solved(doubting(), cells_of([1], [50, 150, 400]), trials=8, seed=19)
    assert isinstance(plan.cells[0].policy, ConfidentChainPolicy)
    assert len({cell.policy for cell in plan.cells}) == len({len(one.contest.priced) for one in found}) == 1


@pytest.mark.parametrize(
    ("batches", "contexts"), [((1,), (50,)), ((1,), (150,)), ((3,), (50, 400)), ((1, 3), (150,)), ((1,), (150, 400))]
)
def test_a_cell_says_the_same_whichever_others_are_planned(batches: tuple[int, ...], contexts: tuple[int, ...]) -> None:
    whole = whole_plan()
    some, _ = solved(growing(), cells_of(batches, contexts), trials=4)
    known = {(cell.batch, cell.context): cell for cell in whole.cells}
    assert [cell == known[cell.batch, cell.context] for cell in some.cells] == [True] * len(batches) * len(contexts)


@cache
def growing() -> PlanInputs:
    """Return a drafter and host whose costs grow with batch and context, so that cells differ."""
    return doubting(draft_ms=lambda batch, context, tokens: 2.0 + 0.2 * batch + 0.004 * context + 0.1 * tokens)


@cache
def whole_plan() -> Plan:
    """Return the plan of every cell that the others name."""
    return solved(growing(), cells_of([1, 3], [50, 150, 400]), trials=4)[0]


def test_notes_on_stacks_are_of_what_the_plan_takes() -> None:
    cells = cells_of([1, 3], [50])
    _, found = solved(family(), cells)
    one, three = found
    stacks = [each.policy for each in three.contest.priced if isinstance(each.policy, StackPolicy)]
    stack = next(each for each in stacks if one.contest.find(each, stack_name(each)) is not None)
    taken = [
        replace(each, ballot=replace(each.ballot, near=(place_in(each, stack, stack_name(stack)),))) for each in found
    ]
    plan = solve(family(), cells, created="", spectune="", spread=lambda work, groups: [tuple(taken)])
    assert [cell.policy for cell in plan.cells] == [stack, stack]
    told = [note for note in plan.provenance.notes if "of its forwards these are modelled" in note]
    assert [note.partition(",")[0] for note in told] == ["batch 1", "batch 3"]
