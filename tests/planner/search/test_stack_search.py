"""Stacks of drafters as candidates of a plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import cell_costs
from spectune.planner.records.crossfit import EVERYWHERE, HALVES, texts_of_half
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.contest import CellSearch
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price, price_all
from spectune.planner.search.search import solve
from spectune.planner.search.stack_search import (
    BEST_OF_ALL,
    Prospect,
    StackSearch,
    least_forwards,
    most_promising,
    stack_times,
    stacks_of,
)
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.records.acceptance import PairwiseAcceptance

from ...support.synthetic import (
    TARGET,
    VOCABULARY,
    Language,
    Milliseconds,
    SkilledDrafter,
    every_node,
    inputs,
    model,
    record,
    surface,
    texts,
)

CELL = Cell(batch=1, context=50)
LANGUAGE = Language(7)
GOOD, QUICK = "good", "quick"


class Restless(Language):
    """A language that seldom says a thing twice."""

    def next(self, tokens: Sequence[int]) -> int:
        return random.Random(repr((self.seed, len(tokens), tokens[-1]))).randrange(VOCABULARY)


@cache
def family(dear_ms: float = 20.0, skill: float = 0.97, agreement: float | None = 0.9) -> PlanInputs:
    """Return a slow target, a drafter that is nearly always right but dear, and a quick one that is often right."""
    good, quick = (skill, lambda b, c, tokens: dear_ms + 0.1 * tokens), (0.9, lambda b, c, tokens: 1.0 + 0.01 * tokens)
    return made(LANGUAGE, lambda b, c, tokens: 400.0 + 0.1 * tokens, good, quick, agreement)


@cache
def restless() -> PlanInputs:
    """Return the like for texts of which nothing can be copied, where forwards cost by their tokens."""
    good, quick = (0.97, lambda b, c, tokens: 3.0 + 0.5 * tokens), (0.75, lambda b, c, tokens: 0.3 + 0.3 * tokens)
    return made(Restless(7), lambda b, c, tokens: 20.0 + 0.5 * tokens, good, quick, 0.9)


def made(
    language: Language,
    verify_ms: Milliseconds,
    good: tuple[float, Milliseconds],
    quick: tuple[float, Milliseconds],
    agreement: float | None,
) -> PlanInputs:
    """Return a target and two drafters of such skill and cost."""
    pairs = texts(language, 6, lambda text: 40 + text)
    traces = [
        record(SkilledDrafter(language, chance), pairs, every_node(1, 3), name=name)
        for name, (chance, _) in ((GOOD, good), (QUICK, quick))
    ]
    drafters = tuple(
        DrafterInputs(
            name=trace.drafter_name,
            model=model(trace.drafter_name),
            surface=surface(trace.drafter_name, "draft", ms),
            trace=trace,
        )
        for trace, (_, ms) in zip(traces, (good, quick), strict=True)
    )
    known = None if agreement is None else _agreeing(agreement)
    return replace(inputs(traces[0], verify_ms=verify_ms), drafters=drafters, pairwise=known)


def _agreeing(chance: float) -> PairwiseAcceptance:
    greedy = ((1.0, 0.9, 0.8), (0.9, 1.0, chance), (0.8, chance, 1.0))
    return PairwiseAcceptance(
        models=("target", GOOD, QUICK),
        greedy=greedy,
        overlap=greedy,
        target=TARGET.key,
        workload="made up",
        positions=99,
    )


def searched(found: PlanInputs, cell: Cell = CELL) -> tuple[StackSearch, list[StackPolicy], float]:
    rehearsal = Rehearsal(found)
    (contest,) = price_all(rehearsal, [cell], SearchOptions())
    search = StackSearch(rehearsal, 0)
    before = contest.best_rate
    search.search(contest)
    return search, [one.policy for one in contest.priced if isinstance(one.policy, StackPolicy)], before


def test_only_a_model_that_costs_less_stands_below_another() -> None:
    (contest,) = price_all(Rehearsal(family()), [CELL], SearchOptions())
    pairs = {policy.models for policy in stacks_of(family(), contest.costs)}
    assert pairs == {(GOOD,), (QUICK,), (GOOD, QUICK)}


def test_without_recorded_agreement_only_lookups_stand_below_a_model() -> None:
    found = family(agreement=None)
    (contest,) = price_all(Rehearsal(found), [CELL], SearchOptions())
    assert {policy.drafters for policy in stacks_of(found, contest.costs)} == {(GOOD, "lookup"), (QUICK, "lookup")}


def test_every_forward_of_a_stack_costs_what_its_model_takes() -> None:
    rehearsal = Rehearsal(family())
    (contest,) = price_all(rehearsal, [CELL], SearchOptions())
    policy = StackPolicy(drafters=(GOOD, QUICK), lengths=(4, 2))
    found = StackSearch(rehearsal, 0).replay(policy, 1)
    times = stack_times(policy, found, contest.costs)
    for at in range(found.replay.rounds):
        ran = [(level, width) for level, width in zip(found.levels[at], found.replay.widths[at], strict=True) if width]
        own = sum(20.0 + 0.1 * width if level == 0 else 1.0 + 0.01 * width for level, width in ran)
        assert times.draft_ms[at] == pytest.approx(own)
        assert times.verify_ms[at] == pytest.approx(400.0 + 0.1 * found.replay.nodes[at])
        assert times.host_ms[at] == pytest.approx(0.1)


def test_a_stack_whose_forward_was_not_measured_has_no_price() -> None:
    rehearsal = Rehearsal(family())
    (contest,) = price_all(rehearsal, [CELL], SearchOptions())
    small = replace(contest.costs.drafts[GOOD], ms=contest.costs.drafts[GOOD].ms[:, :3])
    costs = replace(contest.costs, drafts={**contest.costs.drafts, GOOD: small})
    policy = StackPolicy(drafters=(GOOD, QUICK), lengths=(4, 4))
    with pytest.raises(PlanError, match="was not measured, only up to 2"):
        stack_times(policy, StackSearch(rehearsal, 0).replay(policy, 1), costs)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "policy",
    [
        StackPolicy(drafters=(GOOD, QUICK), lengths=(6, 2)),
        StackPolicy(drafters=(GOOD, QUICK, "lookup"), lengths=(4, 3, 2)),
        StackPolicy(drafters=(QUICK, "lookup"), lengths=(5, 2)),
    ],
)
def test_no_round_has_fewer_forwards_than_the_bound_says(policy: StackPolicy, batch: int) -> None:
    found = StackSearch(Rehearsal(family()), 0).replay(policy, batch)
    for level, least in enumerate(least_forwards(policy)):
        assert (found.levels == level).sum(axis=1).min() >= least


@pytest.mark.parametrize("batch", [1, 3])
def test_no_stack_is_faster_than_its_bound(batch: int) -> None:
    rehearsal, cell = Rehearsal(family()), Cell(batch=batch, context=50)
    (contest,) = price_all(rehearsal, [cell], SearchOptions())
    search = StackSearch(rehearsal, 0)
    prospects = list(search._prospects(contest))
    for one in prospects[:: max(len(prospects) // 12, 1)]:
        assert search.price(contest, one.policy).tokens_per_s <= one.most_rate


def test_a_stack_wins_where_its_upper_drafter_is_dear_and_its_lower_one_agrees() -> None:
    timed = family().overhead
    without = tuple(sample for sample in timed.samples if sample.kind != "hybrid")  # the text alone helps the dear one
    found = replace(family(), overhead=replace(timed, samples=without))
    plan = solve(found, [CELL], created="2026-01-01T00:00:00Z", spectune="0.1")
    (cell,) = plan.cells
    assert isinstance(cell.policy, StackPolicy)
    assert cell.drafter == "+".join(cell.policy.drafters)
    assert cell.runner_up is not None and cell.runner_up.policy.kind != "stack"
    assert any("of its forwards these are modelled" in note for note in plan.provenance.notes)


def test_a_plan_with_a_stack_outlives_its_document() -> None:
    plan = solve(family(), [CELL], created="2026-01-01T00:00:00Z", spectune="0.1", options=SearchOptions(trials=0))
    assert plan_from_json(plan_to_json(plan)) == plan


def test_stacks_that_cannot_win_are_not_replayed() -> None:
    _, stacks, best = searched(family(dear_ms=4000.0, skill=0.5))
    assert best > 0.0
    assert all(policy.models == (QUICK,) for policy in stacks)


def test_a_stack_of_models_is_found_where_it_is_the_fastest() -> None:
    found = restless()
    drafts = {drafter.name: drafter.surface for drafter in found.drafters}
    costs = cell_costs(CELL, found.verify, drafts, found.overhead)
    contest = CellSearch(costs=costs, texts=len(found.texts), needs_bytes=lambda policy, drafter: None)
    search = StackSearch(Rehearsal(found), 0)
    search.search(contest)
    best = contest.best_rate
    every = [search.price(contest, policy) for policy in stacks_of(found, costs)]
    fastest = max(every, key=lambda one: one.tokens_per_s)
    assert fastest.policy.drafters == (GOOD, QUICK)  # type: ignore[union-attr]
    assert best >= fastest.tokens_per_s
    assert 0 < contest.untried < len(every)


def test_every_set_of_drafters_has_its_turn_and_beside_these_the_best_of_all() -> None:
    names = [(GOOD, QUICK), *[(GOOD, "lookup")] * (BEST_OF_ALL + 3)]
    prospects = [
        Prospect(
            policy=StackPolicy(drafters=drafters, lengths=(2 + place, 2)), expected_rate=1.0 + place, most_rate=99.0
        )
        for place, drafters in enumerate(names)
    ]
    tried = [policy.lengths[0] - 2 for policy in most_promising(prospects)]
    assert tried == [*range(BEST_OF_ALL + 3, 3, -1), 0]


def test_siblings_stand_beside_the_stack_that_is_fastest_on_the_half_they_saw() -> None:
    rehearsal = Rehearsal(family())
    (contest,) = price_all(rehearsal, [CELL], SearchOptions())
    StackSearch(rehearsal, 0).search(contest)
    stacks = [
        (one, one.policy, saw)
        for one, saw in zip(contest.priced, contest.searched_on, strict=True)
        if isinstance(one.policy, StackPolicy)
    ]
    alone = [(one, policy) for one, policy, _ in stacks if not policy.siblings]
    beside = [(policy, saw) for _, policy, saw in stacks if policy.siblings]
    assert beside
    for half in range(HALVES):
        texts = texts_of_half(len(rehearsal.inputs.texts), half)
        speeds = {policy: one.tokens_per_s_on(texts) for one, policy in alone}
        fastest = max(speeds, key=lambda policy: speeds[policy])
        assert {replace(policy, siblings=0) for policy, saw in beside if saw in (EVERYWHERE, half)} == {fastest}


def test_any_stack_can_be_priced_by_itself() -> None:
    policy = StackPolicy(drafters=(QUICK, "lookup"), lengths=(3, 3), siblings=1)
    priced = price(family(), CELL, policy)
    assert priced.drafter == "quick+lookup"
    assert np.isclose(priced.tokens_per_s, 1000.0 * priced.tokens_per_round / priced.round_ms)


def test_a_stack_beside_a_single_drafter_changes_no_price_of_that() -> None:
    found = family()
    for policy, drafter in ((PlainPolicy(), None), (LookupPolicy(length=3), "lookup")):
        rehearsal = Rehearsal(found)
        (contest,) = price_all(rehearsal, [CELL], SearchOptions())
        before = contest.find(policy, drafter)
        StackSearch(rehearsal, 0).search(contest)
        assert before is not None and contest.find(policy, drafter) is before
