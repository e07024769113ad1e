"""Which of a test's many cases run by default: few that hold every value of every parameter, and a share of the rest.

A test of all combinations is marked `thinned`, and so are covering arrays (`pairwise.py`); cases that are left out are
marked slow, for `pytest -m slow`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest

SHARE = 0.15  # of the cases that bring nothing new


def thin_out(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what is left out of thinned tests; what is slow anyway neither counts nor stands for anything."""
    cases = defaultdict[str, list[pytest.Function]](list)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if item.get_closest_marker("thinned") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for own in cases.values():
        for case in left_out(own, SHARE):
            case.add_marker(pytest.mark.slow)


def left_out(cases: Iterable[pytest.Function], share: float) -> list[pytest.Function]:
    """Return the cases that bring no value of a parameter for the first time, but for a share that is spread evenly.

    What brings the most new values is taken first, and of those that bring as many what has the rarest of the others.
    So the values of a small parameter take turns beside those of the largest.
    """
    every = list(cases)
    ahead = {place: _values(case) for place, case in enumerate(every)}
    taken = Counter[tuple[str, str]]()
    while ahead:
        place = max(ahead, key=lambda place: _gain(ahead[place], taken))  # the first of equals
        if _gain(ahead[place], taken)[0] == 0:
            break
        taken.update(ahead.pop(place))
    beside = enumerate(ahead, 1)  # in their order
    return [every[place] for number, place in beside if int(number * share) == int((number - 1) * share)]


def _values(case: pytest.Function) -> set[tuple[str, str]]:
    return {(name, repr(value)) for name, value in case.callspec.params.items()}


def _gain(values: set[tuple[str, str]], taken: Counter[tuple[str, str]]) -> tuple[int, int]:
    """Return how many values are new, and how rare the others are."""
    return sum(value not in taken for value in values), -sum(taken[value] for value in values)
