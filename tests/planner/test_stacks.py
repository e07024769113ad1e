"""What a hierarchy of the drafters would do, by the cell's costs and the models' agreement."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from spectune.planner.hierarchy.latency import exact_latency
from spectune.planner.hierarchy.records import Hierarchy, Level
from spectune.planner.inputs import DrafterInputs, PlanInputs
from spectune.planner.pricing.cells import Cell
from spectune.planner.pricing.cost import CellCosts, cell_costs
from spectune.planner.search.stack_forecast import hierarchy_inputs, stack_forecast
from spectune.planner.search.stack_search import stacks_of
from spectune.profiler.records.acceptance import PairwiseAcceptance
from spectune.profiler.records.overhead import OverheadSample
from spectune.profiler.records.role import HEAD

from ..support.synthetic import TARGET, Language, SkilledDrafter, every_node, inputs, model, record, surface, texts

NAMES = ("target", "small", "medium")
AGREEMENT = PairwiseAcceptance(
    models=NAMES,
    greedy=((1.0, 0.5, 0.8), (0.5, 1.0, 0.6), (0.8, 0.6, 1.0)),
    overlap=((1.0, 0.5, 0.8), (0.5, 1.0, 0.6), (0.8, 0.6, 1.0)),
    positions=100,
    target=TARGET.key,
    workload="made up",
    temperature=0.0,
)


@cache
def two_drafters(target_ms: float = 100.0) -> PlanInputs:
    """A slow target, a medium drafter of 3 ms and a small one of 0.5 ms."""
    language = Language(4)
    pairs = texts(language, 6, lambda text: 30)
    small = record(SkilledDrafter(language, 0.6, seed=1), pairs, every_node(2, 3))
    medium = record(SkilledDrafter(language, 0.9, seed=2), pairs, every_node(2, 3), name="medium")
    bottom = inputs(small, verify_ms=lambda batch, context, tokens: target_ms, draft_ms=lambda *shape: 0.5)
    upper = DrafterInputs(
        name="medium", model=model("medium"), surface=surface("medium", "draft", lambda *shape: 3.0), trace=medium
    )
    return replace(bottom, drafters=(*bottom.drafters, upper), pairwise=AGREEMENT)


def costs_of(found: PlanInputs, batch: int = 1) -> CellCosts:
    drafts = {drafter.name: drafter.surface for drafter in found.drafters}
    return cell_costs(Cell(batch=batch, context=20), found.verify, drafts, found.overhead)


def test_the_cheaper_drafter_stands_below_and_the_target_on_top() -> None:
    found = two_drafters()
    assert [one.name for one in hierarchy_inputs(found, costs_of(found)).models] == ["small", "medium", "target"]


def test_acceptance_by_the_target_is_the_traces_and_between_drafters_their_agreement() -> None:
    found = two_drafters()
    rows = hierarchy_inputs(found, costs_of(found)).acceptance
    small, medium = (float(drafter.trace.rank_acceptance()[0]) for drafter in found.drafters)
    assert rows == ((), (0.6,), (small, medium))


def test_where_a_round_costs_nothing_beside_its_nodes_the_target_costs_what_they_do() -> None:
    shapes = {"plain": ((0, 1, 0.0),), "chain": ((1, 2, 0.1), (8, 9, 0.8)), "stack": ((4, 5, 0.4),)}
    samples = tuple(
        OverheadSample(kind=kind, batch=1, draft_forwards=forwards, nodes=nodes, host_ms=(ms,))
        for kind, timed in {**shapes, "lookup": ((0, 3, 0.1), (0, 9, 0.4))}.items()
        for forwards, nodes, ms in timed
    )
    found = replace(two_drafters(), overhead=replace(two_drafters().overhead, samples=samples))
    costs = costs_of(found)
    assert costs.host_of("stack")[0] < 0.0
    target = hierarchy_inputs(found, costs, "stack").models[-1]
    curve = [target.host_ms + target.forward_ms[nodes] for nodes in (1, 3, 9)]
    assert curve == pytest.approx([100.0, 100.1, 100.4], abs=1e-6)


def test_the_forecast_is_the_latency_of_its_own_hierarchy() -> None:
    found = two_drafters()
    stack = stack_forecast(found, costs_of(found))
    assert stack is not None and len(stack.models) == 2
    levels = [Level(name=name, threshold=many) for name, many in zip(stack.models, stack.thresholds, strict=True)]
    own = exact_latency(hierarchy_inputs(found, costs_of(found)), Hierarchy(levels=tuple(levels)))
    assert stack.tokens_per_s == pytest.approx(1000.0 / own.ms_per_token)


def test_a_stack_is_no_slower_than_the_best_single_drafter() -> None:
    found = two_drafters()
    stack = stack_forecast(found, costs_of(found))
    assert stack is not None
    assert stack.tokens_per_s >= stack.best_single_tokens_per_s * (1.0 - 1e-9)


def test_where_a_single_drafter_is_as_fast_no_stack_is_told() -> None:
    fast = two_drafters(10.0)
    assert stack_forecast(fast, costs_of(fast)) is None


def test_without_agreement_or_with_one_drafter_or_a_batch_there_is_no_forecast() -> None:
    found = two_drafters()
    assert stack_forecast(replace(found, pairwise=None), costs_of(found)) is None
    assert stack_forecast(replace(found, drafters=found.drafters[:1]), costs_of(found)) is None
    assert stack_forecast(found, costs_of(found, batch=3)) is None


def test_a_drafter_that_reads_hidden_states_is_in_no_stack() -> None:
    found = two_drafters()
    small, medium = found.drafters
    head = replace(medium, surface=replace(medium.surface, role=HEAD))
    assert head.reads_features and not medium.reads_features
    with_head = replace(found, drafters=(small, head))
    costs = costs_of(with_head)
    assert [one.name for one in hierarchy_inputs(with_head, costs).models] == ["small", "target"]
    assert stack_forecast(with_head, costs) is None
    assert {policy.models for policy in stacks_of(with_head, costs)} == {("small",)}
