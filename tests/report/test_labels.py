"""Labels beside lines: near to where they belong, never over each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy.optimize import isotonic_regression

from spectune.report.axis import axis_of_counts, axis_of_times
from spectune.report.figure import LineSeries, Panel
from spectune.report.labels import end_labels, spread_labels

heights = some.lists(some.floats(0.0, 1.0), min_size=1, max_size=12)


def panel(*ends: tuple[float, float]) -> Panel:
    """Return a panel with one line per end."""
    lines = [
        LineSeries(label=str(place), shade=0.0, marks=(), strokes=(((1.0, y), (x, y)),))
        for place, (x, y) in enumerate(ends)
    ]
    return Panel(title="", x=axis_of_counts("", [1, 8]), y=axis_of_times("", [1, 10], is_log=False), lines=tuple(lines))


@given(heights)
def test_labels_stand_as_near_as_their_order_allows(wanted: list[float]) -> None:
    gap = 0.1
    ranks = np.arange(len(wanted)) * gap
    nearest = isotonic_regression(np.sort(wanted) - ranks).x + ranks  # least squares, by scipy
    assert sorted(spread_labels(wanted, gap, -9.0, 9.0)) == pytest.approx(nearest.tolist(), abs=1e-9)


@given(heights)
def test_labels_keep_the_order_of_their_lines_and_their_distance(wanted: list[float]) -> None:
    placed = spread_labels(wanted, 0.05, 0.0, 1.0)
    ascending = [placed[index] for index in sorted(range(len(wanted)), key=lambda index: (wanted[index], index))]
    assert all(upper - lower >= 0.05 - 1e-9 for lower, upper in pairwise(ascending))


def test_labels_stay_inside_where_they_fit() -> None:
    assert spread_labels([0.0, 0.0, 1.0, 1.0], 0.1, 0.0, 1.0) == pytest.approx([0.0, 0.1, 0.9, 1.0])


def test_a_line_that_ends_earlier_keeps_its_label_where_it_ends() -> None:
    early, late = end_labels(panel((4.0, 5.0), (8.0, 5.0)), gap=0.1)
    assert early.x < late.x
    assert not early.is_led and not late.is_led


def test_lines_that_end_together_get_labels_apart() -> None:
    lower, upper = end_labels(panel((8.0, 5.0), (8.0, 5.0)), gap=0.1)
    assert upper.height - lower.height == pytest.approx(0.1)
    assert lower.is_led and upper.is_led


def test_long_labels_all_stand_behind_the_last_line_and_are_led_from_where_theirs_ends() -> None:
    drawn = panel((4.0, 5.0), (8.0, 5.0))
    named = tuple(replace(line, label=f"a name of some length, {line.label}") for line in drawn.lines)
    labels = list(end_labels(replace(drawn, lines=named), gap=0.1))
    assert len({label.x for label in labels}) == 1
    assert sorted(label.end_x < label.x for label in labels) == [False, True]
    assert abs(labels[0].height - labels[1].height) == pytest.approx(0.1)
