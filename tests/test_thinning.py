"""Thinned tests keep every value of every parameter, and the share of the rest that is asked for."""

from __future__ import annotations

from itertools import pairwise, product
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


def test_what_is_left_out_is_spread_evenly() -> None:
    every = cases(tuple(range(2)), tuple(range(20)))
    places = [every.index(case) for case in left_out(every, 0.5) if case in every[21:]]
    assert {b - a for a, b in pairwise(places)} == {2}
