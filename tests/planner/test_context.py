"""CAST's context quantiser, and what is wrong with its printed form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import PlanError
from spectune.planner.strategies.cast import quantised_context

CONTEXTS, STEPS, POINTS = st.integers(0, 5000), st.integers(1, 300), st.integers(1, 12)


def printed(context: int, step: int, longest: int) -> int:
    """The formula as the paper prints it."""
    return (max(context // step, longest // step - 1) + 1) * step


def with_min(context: int, step: int, longest: int) -> int:
    """The same with `min`."""
    return (min(context // step, longest // step - 1) + 1) * step


@given(CONTEXTS, STEPS, POINTS)
def test_the_printed_form_sends_every_context_of_the_grid_to_the_longest(context: int, step: int, points: int) -> None:
    longest = step * points
    assert printed(context % longest, step, longest) == longest


@given(CONTEXTS, STEPS, POINTS)
def test_off_the_grid_the_form_with_min_is_the_quantiser(context: int, step: int, points: int) -> None:
    if context % step:
        assert quantised_context(context, step, step * points) == with_min(context, step, step * points)


def test_on_the_grid_the_form_with_min_skips_a_context() -> None:
    assert (with_min(64, 64, 256), quantised_context(64, 64, 256)) == (128, 64)


@given(CONTEXTS, STEPS, POINTS)
def test_it_is_the_nearest_of_the_grid_that_is_not_shorter(context: int, step: int, points: int) -> None:
    grid = [step * place for place in range(1, points + 1)]
    assert quantised_context(context, step, grid[-1]) == next((one for one in grid if one >= context), grid[-1])


@given(CONTEXTS, CONTEXTS, STEPS, POINTS)
def test_a_longer_context_never_gets_a_shorter_one(one: int, other: int, step: int, points: int) -> None:
    low, high = (quantised_context(context, step, step * points) for context in sorted((one, other)))
    assert low <= high


@given(CONTEXTS, STEPS, POINTS)
def test_quantising_twice_changes_nothing_more(context: int, step: int, points: int) -> None:
    once = quantised_context(context, step, step * points)
    assert quantised_context(once, step, step * points) == once


@pytest.mark.parametrize(("context", "step", "longest"), [(-1, 8, 16), (5, 0, 16), (5, 8, 4), (5, 8, 20)])
def test_no_grid_is_refused(context: int, step: int, longest: int) -> None:
    with pytest.raises(PlanError, match="multiple of the step"):
        quantised_context(context, step, longest)
