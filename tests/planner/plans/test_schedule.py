"""A decoder that does not thrash between its cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.planner.plans.plan import Plan
from spectune.planner.plans.schedule import next_cell, reachable, reachable_at

from ...support.plans import plan_of


@pytest.fixture
def plan() -> Plan:
    return replace(plan_of([(1, 100), (4, 100), (1, 1000), (4, 1000)]), hysteresis=1.25)


def test_a_fresh_decoder_takes_the_nearest_cell(plan: Plan) -> None:
    assert next_cell(plan, None, 3, 900) is plan.cell(3, 900)


def test_near_the_middle_a_decoder_stays_where_it_is(plan: Plan) -> None:
    small, large = plan.cell(1, 100), plan.cell(4, 100)
    assert next_cell(plan, small, 2, 100) is small
    assert next_cell(plan, large, 2, 100) is large


def test_clearly_beyond_the_middle_it_moves(plan: Plan) -> None:
    small, large = plan.cell(1, 100), plan.cell(4, 100)
    assert next_cell(plan, small, 3, 100) is large
    assert next_cell(plan, large, 1, 100) is small


@pytest.mark.parametrize(("small", "large"), [((4, 100), (5, 100)), ((4, 1000), (4, 1200))])
def test_at_a_cell_of_its_own_a_decoder_moves_however_near_its_cell_is(
    small: tuple[int, int], large: tuple[int, int]
) -> None:
    plan = replace(plan_of([small, large]), hysteresis=1.25)
    for here, there in ((small, large), (large, small)):
        assert next_cell(plan, plan.cell(*here), *there) is plan.cell(*there)


def test_a_batch_that_goes_to_and_fro_around_the_middle_causes_no_switch(plan: Plan) -> None:
    cell = plan.cell(1, 100)
    seen = []
    for batch in (1, 2, 1, 2, 2, 1):
        cell = next_cell(plan, cell, batch, 100)
        seen.append(cell)
    assert all(one is plan.cell(1, 100) for one in seen)


def test_without_hysteresis_the_nearest_cell_is_taken(plan: Plan) -> None:
    bare = replace(plan, hysteresis=1.0)
    assert next_cell(bare, bare.cell(1, 100), 3, 100) is bare.cell(4, 100)


def test_a_growing_context_moves_on_after_the_middle(plan: Plan) -> None:
    cell = plan.cell(1, 100)
    moved = [context for context in range(100, 1001, 10) if next_cell(plan, cell, 1, context) is not cell]
    assert moved[0] > 400
    assert moved[0] < 700


def anywhere(seed: int) -> tuple[Plan, int, int]:
    """Return a plan of any cells, near each other or far apart, and the most sequences and tokens of a decoder."""
    rng = np.random.default_rng(seed)
    batches = rng.choice([1, 2, 3, 4, 6, 8, 16], rng.integers(1, 5), replace=False).tolist()
    contexts = rng.choice(np.arange(1, 8) * rng.integers(1, 12), rng.integers(1, 6), replace=False).tolist()
    places = sorted((b, c) for b in batches for c in contexts if rng.random() < 0.8) or [(2, 9)]
    plan = replace(plan_of(places), hysteresis=float(rng.choice([1.0, 1.15, 1.4])))
    return plan, int(rng.integers(1, 18)), int(rng.integers(1, 80))


def kept_at(plan: Plan, batches: range, longest: int) -> list[int]:
    """Return the ids of the cells that some batch and context keep, by looking at all of them."""
    return [
        id(cell)
        for cell in plan.cells
        if any(next_cell(plan, cell, b, c) is cell for b in batches for c in range(longest + 1))
    ]


@pytest.mark.parametrize("seed", range(60))
def test_cells_that_can_be_reached_are_those_in_which_a_decoder_can_stay(seed: int) -> None:
    plan, most, longest = anywhere(seed)
    assert [id(cell) for cell in reachable(plan, most, longest)] == kept_at(plan, range(1, most + 1), longest)
    assert [id(cell) for cell in reachable_at(plan, most, longest)] == kept_at(plan, range(most, most + 1), longest)


def test_a_cell_is_reached_between_two_contexts_that_both_leave_it() -> None:
    plan = replace(plan_of([(1, 1000 * place) for place in range(1, 6)]), hysteresis=1.15)
    assert plan.cells[4] in reachable(plan, 1, 3800)
    assert next_cell(plan, plan.cells[4], 1, 3490) is plan.cells[4]
    assert all(next_cell(plan, plan.cells[4], 1, context) is not plan.cells[4] for context in (3000, 3800))
