"""Shapes that could not run: what they cost a plan is their own cell, drafter or count, and it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from spectune.errors import MeasurementError, PlanError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import Cell, cells_of, cells_that_run
from spectune.planner.pricing.cost import CellCosts, cell_costs
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price, price_all
from spectune.planner.search.published import published_defaults, unpriceable_defaults
from spectune.planner.search.search import solve
from spectune.planner.search.searched import Searcher
from spectune.planner.search.stack_forecast import hierarchy_inputs, stack_forecast
from spectune.planner.search.stack_search import stacks_of
from spectune.planner.search.studies import studies_in_memory
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.role import CAPTURED
from spectune.profiler.records.surface import LatencySurface

from ..support.synthetic import Language, SkilledDrafter, every_node, inputs, overhead, record, surface, texts
from .test_stacks import costs_of, two_drafters

Gone = Callable[[Measurement], bool]
NEAR, FAR, TOKENS = 20, 200, (1, 2, 4, 8, 16)


def failing(whole: LatencySurface, gone: Gone) -> LatencySurface:
    cells = (replace(one, repeats_ms=(), failure="out of memory") if gone(one) else one for one in whole.measurements)
    return replace(whole, measurements=tuple(cells))


def of_batch(batch: int) -> Gone:
    return lambda one: one.batch == batch


def in_cell(batch: int, context: int) -> Gone:
    return lambda one: (one.batch, one.context_tokens) == (batch, context)


def verify(gone: Gone) -> LatencySurface:
    whole = surface("large", "verify", lambda b, c, n: 10.0 + 0.1 * n, contexts=(NEAR, 100, FAR), tokens=TOKENS)
    return failing(whole, gone)


@cache
def measured() -> PlanInputs:
    language = Language(7)
    trace = record(SkilledDrafter(language, 0.9), texts(language, 6, lambda text: 20 + text), every_node(2, 2))
    found = inputs(trace, verify_ms=lambda b, c, n: 50.0 + 0.1 * n)
    drafter = replace(found.drafters[0], surface=surface("small", "draft", lambda b, c, n: 1.0, contexts=(NEAR, FAR)))
    return replace(found, drafters=(drafter,))


def without(gone: Gone, name: str = "small", found: PlanInputs | None = None) -> PlanInputs:
    """Return inputs of which some forwards of a drafter failed."""
    whole = found or measured()
    own = (replace(one, surface=failing(one.surface, gone)) if one.name == name else one for one in whole.drafters)
    return replace(whole, drafters=tuple(own))


def drafted(gone: Gone, cell: Cell) -> CellCosts:
    found = without(gone)
    return cell_costs(cell, found.verify, {"small": found.drafters[0].surface}, found.overhead)


def solved(found: PlanInputs, *cells: Cell, bound: LatencyBound | None = None) -> Plan:
    options = SearchOptions(trials=0, bound=bound)
    return solve(found, cells, created="2026-01-01T00:00:00Z", spectune="0.1", options=options)


def drafters_of(plan: Plan) -> list[set[str | None]]:
    """Return who drafts in each cell: what was chosen, and what was priced beside it."""
    return [{cell.drafter, *(other.drafter for other in cell.alternatives)} for cell in plan.cells]


def test_a_count_of_drafted_tokens_that_failed_costs_what_the_next_larger_one_does() -> None:
    whole = surface("small", "draft", lambda b, c, n: float(n), tokens=TOKENS)
    found = cell_costs(Cell(batch=1, context=2), verify(lambda one: False), {"small": whole}, overhead(0.1))
    holed = {"small": failing(whole, lambda one: one.tokens == 4 and one.context_tokens == 2)}
    bridged = cell_costs(Cell(batch=1, context=2), verify(lambda one: False), holed, overhead(0.1))
    assert found.drafts["small"].row(2.0)[[3, 4, 5]].tolist() == [3.0, 4.0, 5.0]
    assert bridged.drafts["small"].row(2.0)[[4, 8]].tolist() == [5.0, 8.0]  # 5 lies between 2 and 8, which ran


def test_a_captured_size_that_failed_is_not_run() -> None:
    captured = replace(verify(lambda one: one.tokens == 4 and one.context_tokens == NEAR), regime=CAPTURED)
    found = cell_costs(Cell(batch=1, context=NEAR), captured, {}, overhead(0.1))
    assert found.run_tokens == (0, 1, 2, 6, 8, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14, 16, 16)  # 4 itself is padded to 8


def test_a_drafter_that_lacks_a_batch_drafts_at_the_others() -> None:
    plan = solved(without(lambda one: one.batch == 3), Cell(batch=1, context=NEAR), Cell(batch=3, context=NEAR))
    alone, together = drafters_of(plan)
    assert "small" in alone and "small" not in together
    told = [gone for gone in plan.provenance.censored if gone.drafter == "small" and gone.batch == 3]
    assert {"chain", "static", "eagle2"} <= {gone.label.split()[-1] for gone in told}
    assert all("no forward of batch 3 ran at context 20" in gone.reason for gone in told if "kind chain" in gone.label)


def test_a_drafter_that_was_never_timed_at_a_batch_is_left_out_there() -> None:
    found = measured()
    (drafter,) = found.drafters
    only = surface("small", "draft", lambda b, c, n: 1.0, batches=(1,))
    lone = replace(found, drafters=(replace(drafter, surface=only),))
    with pytest.raises(PlanError, match=r"small does not draft at batch 3.*batch 3 was not measured"):
        price(lone, Cell(batch=3, context=NEAR), ChainPolicy(length=2), "small")


def test_a_drafter_that_failed_at_a_context_is_not_priced_there_as_at_a_shorter_one() -> None:
    found = without(lambda one: one.context_tokens == FAR)
    near, far = drafters_of(solved(found, *cells_of([1], [NEAR, FAR])))
    assert "small" in near and "small" not in far
    beyond = drafted(lambda one: one.context_tokens == FAR, Cell(batch=1, context=FAR + 1))
    assert "no forward of batch 1 ran at context 200" in beyond.undrafted["small"]


def test_a_failure_at_a_longer_context_or_of_some_widths_leaves_a_drafter() -> None:
    assert "small" in drafted(lambda one: one.context_tokens == FAR, Cell(batch=1, context=FAR - 1)).drafts
    narrow = drafted(lambda one: one.context_tokens == FAR and one.tokens > 2, Cell(batch=1, context=FAR))
    assert narrow.drafts["small"].most_tokens == 2


def test_an_exit_whose_verifications_failed_at_a_context_is_verified_whole_there() -> None:
    resume = failing(surface("small", "resume", lambda b, c, n: 5.0), lambda one: one.context_tokens == FAR)
    cells = (Cell(batch=1, context=NEAR), Cell(batch=1, context=FAR))
    near, far = (cell_costs(cell, verify(lambda one: False), {}, overhead(0.1), {"small": resume}) for cell in cells)
    assert "small" in near.resumed and not far.resumed


def test_a_round_of_a_drafter_that_does_not_run_has_no_least_milliseconds() -> None:
    gone, known = (drafted(of_batch(at), Cell(batch=1, context=NEAR)) for at in (1, 3))
    with pytest.raises(PlanError, match="small does not draft at batch 1"):
        gone.at_least("chain", "small")
    assert known.at_least("chain", "small").draft is not None


def test_nothing_is_searched_for_a_drafter_that_does_not_run_even_where_nothing_keeps_the_bound() -> None:
    rehearsal = Rehearsal(without(lambda one: one.batch == 1))
    options = SearchOptions(trials=0, bound=LatencyBound(metric="p90_itl", most_ms=1e-3))
    (contest,) = price_all(rehearsal, [Cell(batch=1, context=NEAR)], options)
    assert contest.lacks_times(ChainPolicy(length=1), "small")
    Searcher(options=options, studies=studies_in_memory(0), rehearsal=rehearsal).search(contest)
    assert contest.best_rate == 0.0 and not any(one.drafter == "small" for one in contest.priced)


def test_a_drafter_that_does_not_run_is_in_no_stack_and_no_forecast() -> None:
    found = without(lambda one: one.batch == 1, found=two_drafters())
    costs = costs_of(found)
    assert {policy.models for policy in stacks_of(found, costs)} == {("medium",)}
    assert [one.name for one in hierarchy_inputs(found, costs).models] == ["medium", "target"]
    assert stack_forecast(found, costs) is None


def test_published_defaults_of_a_drafter_that_does_not_run_say_so() -> None:
    costs = drafted(lambda one: one.batch == 1, Cell(batch=1, context=NEAR))
    assert {one.policy.kind for one in published_defaults(costs, "small", 10)} <= {
        *("lookup", "suffix", "suffix-tree", "cacheback")
    }
    reasons = {one.name: one.reason for one in unpriceable_defaults(costs, "small", 60)}
    assert all("small does not draft" in reasons[name] for name in ("SGLang 3/1/4", "EAGLE 60/7/10", "CAST 4/3/2.5"))


def test_a_context_counts_where_the_widest_row_of_one_batch_failed() -> None:
    assert verify(lambda one: False).full_contexts([1, 3]) == (NEAR, 100, FAR)
    corner = verify(lambda one: (one.batch, one.context_tokens, one.tokens) == (3, FAR, 16))
    assert corner.full_contexts([1, 3]) == (NEAR, 100, FAR) and corner.barred(3, FAR) is None


def test_a_context_where_all_of_a_larger_batch_failed_is_planned_for_the_smaller_ones() -> None:
    found = verify(lambda one: one.batch == 3 and one.context_tokens == FAR)
    cells = cells_that_run(found, [1, 3], found.full_contexts([1, 3]))
    places = [(cell.batch, cell.context) for cell in cells]
    assert places == [(1, NEAR), (3, NEAR), (1, 100), (3, 100), (1, FAR)]


def test_a_context_where_all_of_the_smallest_batch_failed_does_not_count() -> None:
    assert verify(lambda one: one.batch == 1 and one.context_tokens == FAR).full_contexts([1, 3]) == (NEAR, 100)


def test_a_context_where_all_of_a_batch_failed_bars_it_between_others_and_beyond_them() -> None:
    between, beyond = (verify(in_cell(3, at)) for at in (100, FAR))
    assert [between.barred(3, at) is None for at in (99, 100, 101, FAR)] == [True, False, True, True]
    assert [beyond.barred(3, at) is None for at in (100, 199, FAR, 900)] == [True, True, False, False]
    assert beyond.barred(1, FAR) is None and between.full_contexts([1, 3]) == (NEAR, 100, FAR)


def test_a_context_that_was_never_tried_whole_does_not_count() -> None:
    whole = verify(lambda one: False)
    beside = Measurement(batch=1, context_tokens=150, tokens=2, repeats_ms=(10.0,))
    assert replace(whole, measurements=(*whole.measurements, beside)).full_contexts([1, 3]) == (NEAR, 100, FAR)


def test_where_nothing_failed_all_cells_run() -> None:
    found = verify(lambda one: False)
    assert cells_that_run(found, [3, 1], [900, NEAR]) == cells_of([3, 1], [900, NEAR])


def test_a_plan_without_a_cell_that_runs_says_why() -> None:
    found = verify(lambda one: one.context_tokens == FAR)
    with pytest.raises(MeasurementError, match=r"no forward of batch 1 ran at context 200 .*: out of memory; plan"):
        cells_that_run(found, [1, 3], [FAR])


def test_a_plan_says_where_no_forward_of_the_target_ran() -> None:
    whole = measured()
    target = failing(whole.verify, lambda one: one.batch == 3 and one.context_tokens == FAR)
    plan = solved(replace(whole, verify=target), *cells_that_run(target, [1, 3], [NEAR, FAR]))
    assert [(cell.batch, cell.context) for cell in plan.cells] == [(1, NEAR), (3, NEAR), (1, FAR)]
    assert "batch 3, context 200: no forward of the target ran (out of memory), so none is planned" in (
        plan.provenance.notes
    )
    assert plan.cell(3, FAR).context == NEAR


def test_a_cell_where_only_one_token_can_be_verified_is_plain_decoding() -> None:
    whole = two_drafters()
    narrow = failing(whole.verify, lambda one: one.context_tokens == FAR and one.tokens > 1)
    (cell,) = solved(replace(whole, verify=narrow), Cell(batch=1, context=FAR)).cells
    assert cell.policy.kind == "plain" and narrow.full_contexts([1, 3]) == (2, FAR)
