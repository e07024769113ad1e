"""Where a session looks next."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from spectune.profiler.design import AdaptiveDesign
from spectune.profiler.domain import Domain, Shape
from spectune.profiler.options import interval_errors
from spectune.profiler.records.visit import Visit
from spectune.profiler.tally import SurfaceCell, Tally, median_doubt

DOMAIN = Domain(batches=(1,), contexts=(0,), most_tokens=64)
Cost = Callable[[Shape], float]


def tally_of(design: AdaptiveDesign, cost: Cost, calls: int = 5) -> Tally:
    """Return a tally whose first points were timed without noise."""
    tally = Tally()
    design.begin(tally, random.Random(0))
    for number in range(calls):
        for cell in list(tally.cells):
            note(tally, cell, cost(cell.shape), number)
    tally.settle()
    return tally


def note(tally: Tally, cell: SurfaceCell, ms: float, round_: int) -> None:
    batch, context, tokens = cell.shape
    tally.note(
        Visit(
            ordinal=sum(each.timed for each in tally.cells),
            surface=cell.surface,
            batch=batch,
            context_tokens=context,
            tokens=tokens,
            purpose=cell.purpose,
            round=round_,
            spent_s=0.0,
            ms=ms,
        )
    )


def next_shape(design: AdaptiveDesign, tally: Tally) -> Shape | None:
    chosen = design.choose(tally, 1e-9, 0.5, lambda _, ms: ms)
    return chosen[0].shape if chosen else None


def test_a_straight_row_hides_nothing_but_a_staircase() -> None:
    assert interval_errors([1, 2, 4, 8], [1.0, 2.0, 4.0, 8.0]) == pytest.approx([1 / 6, 2 / 6, 4 / 6])


def test_the_gap_with_the_edge_may_be_wrong_by_half_the_jump() -> None:
    errors = interval_errors([1, 2, 4, 8, 16], [5.0, 5.0, 5.0, 9.0, 9.0])
    assert max(errors) == errors[2] == 2.0


def test_a_gap_without_neighbours_may_be_wrong_by_half_its_jump() -> None:
    assert interval_errors([1, 9], [2.0, 6.0]) == [2.0]


def test_the_next_shape_lies_inside_the_gap_with_the_edge() -> None:
    design = AdaptiveDesign([DOMAIN], held_out=0)
    shape = next_shape(design, tally_of(design, lambda shape: 5.0 if shape[2] < 41 else 50.0))
    assert shape is not None and 32 < shape[2] < 64


def test_bisection_walks_down_to_the_edge() -> None:
    design = AdaptiveDesign([DOMAIN], held_out=0)
    tally = tally_of(design, step := lambda shape: 5.0 if shape[2] < 41 else 50.0)
    for number in range(30):
        for cell in design.choose(tally, 1e-9, 0.5, lambda _, ms: ms):
            note(tally, cell, step(cell.shape), 5 + number)
        tally.settle()
    assert tally.knows(0, (1, 0, 40)) and tally.knows(0, (1, 0, 41))


def test_nothing_is_left_to_time_where_all_is_flat_and_quiet() -> None:
    design = AdaptiveDesign([DOMAIN], held_out=0)
    assert next_shape(design, tally_of(design, lambda _: 5.0)) is None


def test_a_round_without_room_times_what_gains_most_all_the_same() -> None:
    design = AdaptiveDesign([DOMAIN], held_out=0)
    tally = tally_of(design, lambda shape: 5.0 if shape[2] < 41 else 50.0)
    (chosen,) = design.choose(tally, -1.0, 0.5, lambda _, ms: ms)
    assert 32 < chosen.shape[2] < 64


def test_a_context_between_is_asked_for_with_the_ends_of_its_row() -> None:
    design = AdaptiveDesign([Domain(batches=(1,), contexts=(0, 1000), most_tokens=64)], held_out=0)
    tally = tally_of(design, lambda shape: 5.0 + (shape[1] > 0))
    chosen = {cell.shape for cell in design.choose(tally, 1e-9, 0.5, lambda _, ms: ms)}
    assert chosen == {(1, 500, 8), (1, 500, 1), (1, 500, 64)}


@dataclass(frozen=True)
class Only:
    """A value that cares for some token counts alone."""

    low: int
    high: int

    def worths(self, cost: Callable[[int, Shape], float | None]) -> Callable[[int, Shape], float]:
        return lambda surface, shape: 1.0 if self.low <= shape[2] <= self.high else 1e-9


def test_of_two_edges_the_one_that_matters_to_the_decision_is_looked_for_first() -> None:
    def two_edges(shape: Shape) -> float:
        return 5.0 + 5.0 * (shape[2] >= 11) + 10.0 * (shape[2] >= 41)

    free, bound = (AdaptiveDesign([DOMAIN], held_out=0, value=value) for value in (None, Only(8, 16)))
    shapes = [next_shape(design, tally_of(design, two_edges)) for design in (free, bound)]
    assert shapes[0] is not None and shapes[0][2] > 32
    assert shapes[1] is not None and 8 < shapes[1][2] < 16


def test_a_value_is_told_what_is_known_and_nothing_more() -> None:
    heard: list[float | None] = []

    class Listener:
        def worths(self, cost: Callable[[int, Shape], float | None]) -> Callable[[int, Shape], float]:
            heard.extend([cost(0, (1, 0, 4)), cost(0, (1, 0, 65)), cost(0, (2, 0, 4))])
            return lambda surface, shape: 1.0

    design = AdaptiveDesign([DOMAIN], held_out=0, value=Listener())
    next_shape(design, tally_of(design, lambda shape: float(shape[2])))
    assert heard == [pytest.approx(4.0), None, None]


def test_points_that_disagree_with_themselves_are_timed_again_first() -> None:
    design = AdaptiveDesign([DOMAIN], held_out=0)
    tally = tally_of(design, lambda _: 5.0)
    for number, ms in enumerate((5.0, 50.0, 50.0)):
        note(tally, tally.cell(0, (1, 0, 20)), ms, 5 + number)
    tally.settle()
    assert next_shape(design, tally) == (1, 0, 20)


def test_two_outliers_among_three_calls_leave_the_median_in_doubt() -> None:
    assert median_doubt(np.array([0.0, 2.3, 2.3])) == pytest.approx(1.15)
    assert median_doubt(np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.3, 2.3])) == 0.0


def test_held_out_cells_come_due_as_the_budget_is_spent() -> None:
    design = AdaptiveDesign([DOMAIN], held_out=4)
    tally = tally_of(design, lambda shape: 5.0 if shape[2] < 41 else 50.0, calls=4)
    early, late = (design.choose(tally, 100.0, share, lambda _, ms: ms) for share in (0.3, 0.9))
    assert not any(cell.purpose == "held-out" for cell in early)
    assert sum(cell.purpose == "held-out" for cell in late) == 4


def test_cells_that_matter_to_the_decision_get_their_first_calls_before_others_and_those_make_do_with_fewer() -> None:
    calls = {}
    for name, value in (("any", None), ("some", Only(8, 16))):
        design, timed = AdaptiveDesign([DOMAIN], held_out=0, value=value, enough=1.0), list[int]()
        tally = tally_of(design, lambda shape: float(shape[2]), calls=1)
        for ordinal in range(1000, 1100):
            chosen = next_shape(design, tally)
            if chosen is None:
                break
            timed.append(chosen[2])
            note(tally, tally.cell(0, chosen), float(chosen[2]), ordinal)
            tally.settle()
        calls[name] = timed
    assert {tokens: calls["any"].count(tokens) for tokens in (8, 16, 32)} == {8: 2, 16: 2, 32: 2}
    assert {tokens: calls["some"].count(tokens) for tokens in (8, 16, 32)} == {8: 2, 16: 2, 32: 1}
    assert {*calls["some"][:2]} == {8, 16}


def test_one_surface_has_sentinels_for_all() -> None:
    tally = Tally()
    AdaptiveDesign([DOMAIN, DOMAIN, DOMAIN], held_out=3).begin(tally, random.Random(0))
    assert {cell.surface for cell in tally.cells if cell.purpose == "sentinel"} == {0}
    assert {cell.surface for cell in tally.cells if cell.purpose == "design"} == {0, 1, 2}


def test_no_new_cell_is_begun_when_the_budget_is_nearly_spent() -> None:
    design = AdaptiveDesign([DOMAIN], held_out=0)
    tally = tally_of(design, lambda shape: 9.0 if shape[2] > 40 else 5.0)
    late = design.choose(tally, 1e-9, 0.95, lambda _, ms: ms)
    early = design.choose(tally, 1e-9, 0.5, lambda _, ms: ms)
    assert any(not cell.visits for cell in early) and all(cell.visits for cell in late)
