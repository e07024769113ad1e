"""What differs between two plans, and when a difference is more than chance."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy
from spectune.report.site.difference import CellChange, changes

from ..support.priced_cells import PLAIN, cell_of, plan_with, priced


def plan(tokens: float, *, length: int = 3, width: float = 0.1, batches: tuple[int, ...] = (4,)) -> Plan:
    """Return a plan whose intervals reach `width` to either side."""
    own = priced(ChainPolicy(length=length), tokens)
    made = plan_with(*(cell_of([PLAIN, own], batch=batch) for batch in batches))
    cells = []
    for cell in made.cells:
        promise = cell.prediction
        low, high = (1 - width) * promise.tokens_per_s, (1 + width) * promise.tokens_per_s
        cells.append(replace(cell, prediction=replace(promise, low=low, high=high)))
    return replace(made, cells=tuple(cells))


def only(found: list[CellChange]) -> CellChange:
    (change,) = found
    return change


def test_a_plan_does_not_differ_from_itself() -> None:
    found = only(changes(plan(2.5), plan(2.5)))
    assert (found.kind, found.ratio, found.is_clear) == ("same", 1.0, False)


@pytest.mark.parametrize(("tokens", "is_clear"), [(2.6, False), (2.8, False), (3.2, True), (2.4, False), (1.9, True)])
def test_a_change_is_clear_where_both_intervals_cannot_explain_it(tokens: float, is_clear: bool) -> None:
    found = only(changes(plan(2.5), plan(tokens)))
    low, high = sorted((2.5, tokens))
    allowed = math.hypot(math.log(1 / 0.9), math.log(1.1))  # below the faster one and above the slower one
    assert found.is_clear == is_clear == (math.log(high / low) > allowed)


def test_a_change_is_as_clear_backwards() -> None:
    for tokens in (2.4, 2.9, 3.3):
        forth, back = only(changes(plan(2.5), plan(tokens))), only(changes(plan(tokens), plan(2.5)))
        assert forth.is_clear == back.is_clear
        assert forth.ratio is not None
        assert back.ratio == pytest.approx(1 / forth.ratio)


def test_wider_intervals_make_the_same_change_unclear() -> None:
    assert only(changes(plan(2.5), plan(3.2))).is_clear
    assert not only(changes(plan(2.5, width=0.3), plan(3.2, width=0.3))).is_clear


def test_another_policy_is_a_change_even_at_the_same_speed() -> None:
    found = only(changes(plan(2.5), plan(2.5, length=4)))
    assert (found.kind, found.is_clear) == ("changed", False)


def test_cells_of_one_plan_alone_are_added_or_removed() -> None:
    found = changes(plan(2.5, batches=(1, 4)), plan(2.5, batches=(4, 16)))
    assert [(each.batch, each.kind, each.ratio is None) for each in found] == [
        (1, "removed", True),
        (4, "same", False),
        (16, "added", True),
    ]
