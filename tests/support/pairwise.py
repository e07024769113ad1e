"""Covering arrays of strength two: few rows in which every two levels of different factors meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Choice = tuple[str, Any]  # a factor and one of its levels, which may be anything hashable
Pair = tuple[Choice, Choice]
Row = dict[str, Any]


def covering(factors: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return rows of one level per factor that hold every pair of levels; the same rows every time.

    Greedy: a row begins with a pair that is still missing, and each other factor, the largest first, takes the level
    that meets the most missing pairs with what stands in the row.

    Args:
        factors: two or more, each with levels that differ.

    Source: Cohen, Dalal, Fredman, Patton 1997, The AETG system, IEEE TSE 23(7), without its random restarts.
    """
    missing = dict.fromkeys(pairs_of(factors))  # a dictionary keeps its order, and so the rows keep theirs
    largest_first = sorted(factors, key=lambda factor: -len(factors[factor]))
    rows = []
    while missing:
        row: Row = dict(next(iter(missing)))
        for factor in largest_first:
            if factor not in row:
                gains = [_gain((factor, level), row, missing) for level in factors[factor]]
                row[factor] = factors[factor][gains.index(max(gains))]
        rows.append({factor: row[factor] for factor in factors})
        for pair in combinations(rows[-1].items(), 2):
            missing.pop(pair, None)
    return rows


def crossed(**factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Run a test on a thinned covering array of the levels of its parameters; all others of their product are slow."""
    given = {name: tuple(levels) for name, levels in factors.items()}
    covered = {tuple(row.values()) for row in covering(given)}
    cases = [
        pytest.param(*levels, marks=pytest.mark.thinned if levels in covered else pytest.mark.slow)
        for levels in product(*given.values())
    ]
    return pytest.mark.parametrize(tuple(given), cases)


def some_of(cases: Sequence[Any], every: int) -> list[Any]:
    """Return all cases as parameters of a test, of which one in so many runs always; all others are slow."""
    return [
        pytest.param(case, marks=() if number % every == 0 else pytest.mark.slow) for number, case in enumerate(cases)
    ]


def pairs_of(factors: Mapping[str, Sequence[Any]]) -> list[Pair]:
    """Return every pair of levels of different factors, factors in their order."""
    return [
        ((first, a), (second, b))
        for first, second in combinations(factors, 2)
        for a, b in product(factors[first], factors[second])
    ]


def _gain(choice: Choice, row: Row, missing: Mapping[Pair, None]) -> int:
    """Return how many missing pairs a choice completes with what stands in a row."""
    return sum((choice, other) in missing or (other, choice) in missing for other in row.items())
