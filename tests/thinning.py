"""Which of a test's many cases run by default: every value of every parameter once, and a share of the others.

A test of all combinations is marked `thinned`; cases of it that are left out are marked slow, for `pytest -m slow`.
Covering arrays (`pairwise.py`) are as small as they may be, and stay whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

SHARE = 0.34  # of the cases that bring nothing new


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
    """Return the cases that bring no value of a parameter for the first time, but for a share that is spread evenly."""
    seen, beside, left = set[tuple[str, str]](), 0, list[pytest.Function]()
    for case in cases:
        values = {(name, repr(value)) for name, value in case.callspec.params.items()}
        if values - seen:
            seen |= values
            continue
        beside += 1
        if int(beside * share) == int((beside - 1) * share):
            left.append(case)
    return left
