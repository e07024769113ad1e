"""Cells and their neighbours: what one found the others price, and a plan tells of what its schedule takes."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import Plan
from spectune.planner.policies import CastPolicy, ConfidentChainPolicy, StackPolicy, TreePolicy
from spectune.planner.policies.stack import stack_name
from spectune.planner.pricing.cells import Cell, cells_of
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.crossfit import EVERYWHERE
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import Solve, solve
from spectune.planner.search.solved import SolvedCell

from .chain_traces import chain_prompt, trace_of
from .synthetic import TARGET, Milliseconds, inputs, model
from .test_planner_stack_search import family

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
) -> tuple[Plan, list[tuple[TreePolicy, str | None]], list[SolvedCell]]:
    """Return a plan, what each of its cells would have taken by itself, and what they found."""
    firsts, kept = list[tuple[TreePolicy, str | None]](), list[SolvedCell]()

    def keep(work: Solve, groups: Iterable[tuple[Cell, ...]]) -> Iterator[tuple[SolvedCell, ...]]:
        for group in groups:
            found = pickle.loads(pickle.dumps(work(group)))  # as from another process
            kept.extend(found)
            firsts.extend((one.first[0].policy, one.first[0].drafter) for one in found)
            yield found

    options = SearchOptions(trials=trials, seed=seed)
    plan = solve(measured, cells, created="", spectune="", options=options, spread=keep)
    return plan, firsts, kept


def place_in(one: SolvedCell, policy: TreePolicy, drafter: str | None) -> int:
    place = one.contest.place_of(policy, drafter)
    assert place is not None
    return place


def test_cells_of_the_same_costs_decode_alike_whatever_the_search_of_each_found() -> None:
    cells = cells_of([1], [50, 150, 400])
    plan, firsts, found = solved(doubting(), cells, trials=8, seed=19)  # of few seeds they differ
    assert all(isinstance(policy, ConfidentChainPolicy) for policy, _ in firsts) and len(set(firsts)) > 1
    assert len({cell.policy for cell in plan.cells}) == 1
    half = {
        one.contest.searched_on[place_in(one, cell.policy, cell.drafter)]
        for one, cell in zip(found, plan.cells, strict=True)
    }
    assert len(half) == 1 and half != {EVERYWHERE}


def test_what_the_first_context_would_take_is_priced_at_the_last_one_too() -> None:
    cells, measured = cells_of([1], [50, 150, 400]), doubting()
    _, _, (first, *others) = solved(measured, cells)
    rare = ConfidentChainPolicy(length=3, confidence=0.123)
    assert all(one.contest.find(rare, "small") is None for one in (first, *others))
    first.contest.enter(rare, "small", Rehearsal(measured).replay(rare, "small", 1), EVERYWHERE)
    place = place_in(first, rare, "small")
    ballot = replace(first.ballot, candidates=first.contest.priced, able=(*first.ballot.able, place), near=(place,))
    first = replace(first, ballot=ballot)
    solve(measured, cells, created="", spectune="", spread=lambda work, groups: [(first, *others)])
    assert all(one.contest.find(rare, "small") is not None for one in others)


def test_notes_on_stacks_are_of_what_the_schedule_takes() -> None:
    """At batch 3 plain decoding stands first and a stack ties with it, which the schedule takes as at batch 1."""
    cells = cells_of([1, 3], [50])
    _, _, found = solved(family(), cells)
    one, three = found
    stacks = [each.policy for each in three.contest.priced if isinstance(each.policy, StackPolicy)]
    stack = next(each for each in stacks if one.contest.find(each, stack_name(each)) is not None)
    places = [place_in(each, stack, stack_name(stack)) for each in found]
    tied = [
        replace(one, ballot=replace(one.ballot, near=(places[0],))),
        replace(three, ballot=replace(three.ballot, near=(three.ballot.plain, places[1]))),
    ]
    plan = solve(family(), cells, created="", spectune="", spread=lambda work, groups: [tuple(tied)])
    assert [cell.policy for cell in plan.cells] == [stack, stack]
    told = [note for note in plan.provenance.notes if "of its forwards these are modelled" in note]
    assert [note.partition(",")[0] for note in told] == ["batch 1", "batch 3"]


def test_where_a_neighbour_s_way_cannot_be_priced_the_plan_tells_why() -> None:
    """At batch 1 CAST stands first; at batch 3 no forward of the target of more than one token ran."""
    measured = doubting(("plain", "chain", "cast"), draft_ms=lambda batch, *shape: 2.0 + batch)
    cells = cells_of([1, 3], [50])
    _, _, (one, three) = solved(measured, cells)
    cast = next(place for place, each in enumerate(one.contest.priced) if isinstance(each.policy, CastPolicy))
    one = replace(one, ballot=replace(one.ballot, near=(cast,)))
    verify = three.contest.costs.verify
    three.contest.costs = replace(three.contest.costs, verify=replace(verify, ms=verify.ms[:, :2]))
    three = replace(three, ballot=replace(three.ballot, near=(three.ballot.plain,)))
    plan = solve(measured, cells, created="", spectune="", spread=lambda work, groups: [(one, three)])
    policy, drafter = one.first[0].policy, one.first[0].drafter
    assert three.contest.reason(policy, drafter) == "a verify of 2 tokens was not measured; profile larger ones"
    assert set(three.contest.left_out()) <= set(plan.provenance.censored)
