"""Thinned tests keep every value of every parameter, and the share of the rest that is asked for."""

from __future__ import annotations

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from .thinning import left_out


def cases(*values: tuple[Any, ...]) -> list[Any]:
    """Return what stands for the cases of one test, with a parameter per tuple."""
    return [
        SimpleNamespace(callspec=SimpleNamespace(params={str(place): value for place, value in enumerate(row)}))
        for row in product(*values)
    ]


@pytest.mark.parametrize("share", [0.0, 0.34, 1.0])
def test_every_value_stays_and_of_the_rest_a_share(share: float) -> None:
    every = cases(tuple(range(5)), (False, True), ("a", "b", "c"))
    left = left_out(every, share)
    kept = [case for case in every if case not in left]
    values = [
        {(name, value) for case in some for name, value in case.callspec.params.items()} for some in (every, kept)
    ]
    assert values[0] == values[1]
    needed = len(every) - len(left_out(every, 0.0))
    assert len(kept) == needed + int((len(every) - needed) * share)


def test_as_few_are_needed_as_the_largest_parameter_has_values_and_those_of_the_others_take_turns() -> None:
    every = cases(tuple(range(6)), (False, True), ("a", "b", "c"))
    left = left_out(every, 0.0)
    needed = [case.callspec.params for case in every if case not in left]
    assert sorted(params["0"] for params in needed) == list(range(6))
    assert Counter(params["1"] for params in needed) == {False: 3, True: 3}
    assert Counter(params["2"] for params in needed) == {"a": 2, "b": 2, "c": 2}


def test_what_is_left_out_is_spread_evenly() -> None:
    every = cases(tuple(range(2)), tuple(range(20)))
    assert left_out(every, 0.5) == left_out(every, 0.0)[::2]
