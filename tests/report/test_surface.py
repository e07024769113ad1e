"""The picture of a surface holds what the surface holds."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.profiler.records.measurement import Measurement, Purpose
from spectune.profiler.records.surface import LatencySurface
from spectune.report.figure import Figure, Mark
from spectune.report.surface import surface_figure

from ..support.synthetic import surface


def cell(batch: int, context: int, tokens: int, *repeats_ms: float, purpose: Purpose = "design") -> Measurement:
    return Measurement(batch=batch, context_tokens=context, tokens=tokens, repeats_ms=repeats_ms, purpose=purpose)


FAILED = Measurement(batch=4, context_tokens=900, tokens=64, failure="out of memory")
PLACES = [(batch, context, tokens) for batch in (1, 4) for context in (100, 900) for tokens in (1, 8, 64)]
CELLS = (
    *(cell(b, c, n, b * n + 0.9, b * n + 1.0, b * n + 1.2) for b, c, n in PLACES if (b, c, n) != (4, 900, 64)),
    FAILED,
    cell(1, 500, 30, 33.0, 34.0, 36.0, purpose="held-out"),
    cell(4, 500, 5, 20.0, 20.5, 21.0, purpose="held-out"),
)
SURFACE = replace(surface("large", "verify", lambda batch, context, tokens: 1.0), measurements=CELLS, attention="sdpa")


def figure(found: LatencySurface = SURFACE) -> Figure:
    return surface_figure(found, device="Abacus", model="large")


def marks(kind: str, found: Figure) -> list[Mark]:
    return [mark for panel in found.panels for mark in panel.marks if mark.kind == kind]


def test_every_cell_is_drawn_once() -> None:
    drawn = Counter(mark.text.splitlines()[0] for panel in figure().panels for mark in panel.marks)
    cells = Counter(f"batch {c.batch}, context {c.context_tokens}, tokens {c.tokens}" for c in CELLS)
    assert drawn == cells


def test_there_is_a_panel_per_batch_and_one_for_what_was_held_out() -> None:
    assert [panel.title for panel in figure().panels] == ["batch 1", "batch 4", "held-out cells of all batches"]


def test_panels_of_batches_share_the_axis_of_tokens_and_have_their_own_of_times() -> None:
    first, second, _ = figure().panels
    assert first.x == second.x
    assert first.y.high < second.y.high


def test_there_is_a_line_per_context_and_a_context_has_one_shade() -> None:
    lines = [(line.label, line.shade) for panel in figure().panels[:2] for line in panel.lines]
    assert lines == [("100", 0.0), ("900", 1.0)] * 2


def test_a_stroke_says_what_the_surface_says() -> None:
    line = figure().panels[0].lines[1]
    ((first, *rest),) = line.strokes
    said = [(tokens, SURFACE.latency(1, 900, int(tokens)).ms) for tokens, _ in (first, *rest)]
    assert [first, *rest] == said
    assert (first[0], rest[-1][0]) == (1, 64)


def test_a_mark_stands_at_the_median_with_a_whisker_of_its_standard_error() -> None:
    mark = next(mark for mark in figure().panels[1].marks if mark.x == 8)
    repeats = np.array([32.9, 33.0, 33.2])
    deviation = 1.4826 * np.median(np.abs(repeats - 33.0))  # of a normal sample, from its absolute deviations
    error = np.sqrt(np.pi / 2) * deviation / np.sqrt(3)
    assert (mark.y, mark.high) == pytest.approx((33.0, 33.0 + error))


def test_a_whisker_never_reaches_below_the_fastest_repeat() -> None:
    wild = replace(SURFACE, measurements=(cell(1, 0, 1, 1.0, 10.0, 30.0), cell(1, 0, 2, 9.0)))
    assert [mark.low for mark in marks("measured", figure(wild))] == [1.0, 9.0]


def test_a_failed_cell_has_no_height_and_says_why() -> None:
    (mark,) = marks("failed", figure())
    assert (mark.x, mark.y) == (64, None)
    assert mark.text.endswith("could not run: out of memory")


def test_a_stroke_ends_where_the_surface_says_nothing() -> None:
    line = figure().panels[1].lines[1]
    assert line.strokes[-1][-1][0] < 64


def test_a_held_out_cell_stands_at_the_error_of_the_surface_there() -> None:
    mark = marks("held-out", figure())[0]
    assert mark.y == pytest.approx(100.0 * (SURFACE.latency(1, 500, 30).ms / 34.0 - 1.0))


def test_the_facts_name_device_regime_dtype_and_the_held_out_errors() -> None:
    errors = [abs(SURFACE.latency(*shape).ms / ms - 1.0) for shape, ms in (((1, 500, 30), 34.0), ((4, 500, 5), 20.5))]
    median, worst = statistics.median(errors), np.quantile(errors, 0.95)
    assert figure().facts == (
        "on Abacus",
        "eager, float32, sdpa attention; 14 cells, measured",
        f"held-out error: median {median:.1%}, 95th percentile {worst:.1%}, of 2 cells",
    )


def test_a_surface_without_held_out_cells_says_nothing_of_their_errors() -> None:
    found = figure(surface("large", "verify", lambda batch, context, tokens: 1.0))
    assert len(found.facts) == 2
    assert "off by" not in found.grid.columns


@pytest.mark.parametrize(
    ("regime", "words"),
    [("imported:vllm", "measured elsewhere"), ("estimated:eager", "not measured"), ("bound:eager", "not measured")],
)
def test_what_was_not_measured_here_is_not_called_so(regime: str, words: str) -> None:
    found = figure(replace(SURFACE, regime=regime))
    assert words in found.facts[1]
    assert words in dict(found.legend)["measured"]


def test_a_held_out_cell_beyond_the_surface_has_no_height() -> None:
    found = figure(replace(SURFACE, measurements=(*CELLS, cell(1, 5000, 3, 1.0, purpose="held-out"))))
    (beyond,) = [mark for mark in marks("held-out", found) if mark.y is None]
    assert beyond.text.endswith("the surface does not reach here")


def test_the_table_has_a_row_per_cell() -> None:
    grid = figure().grid
    assert len(grid.rows) == len(CELLS)
    assert ("4", "900", "64", "", "", "0", "design", "", "", "out of memory") in grid.rows


def test_panels_are_all_logarithmic_or_none_is() -> None:
    steep = tuple(cell(2, 100, tokens, 5.0 * tokens) for tokens in (1, 100))
    flat = tuple(cell(1, 100, tokens, 5.0) for tokens in (1, 100))
    together, alone = (figure(replace(SURFACE, measurements=cells)) for cells in (flat + steep, flat))
    assert [panel.y.is_log for panel in together.panels] == [True, True]
    assert [panel.y.is_log for panel in alone.panels] == [False]


def test_a_batch_that_never_ran_has_a_panel_of_its_failures() -> None:
    found = figure(replace(SURFACE, measurements=(cell(1, 100, 1, 5.0), FAILED)))
    assert [[mark.kind for mark in panel.marks] for panel in found.panels] == [["measured"], ["failed"]]


def test_a_surface_whose_cells_all_failed_is_refused() -> None:
    with pytest.raises(MeasurementError, match="nothing to draw"):
        figure(replace(SURFACE, measurements=(FAILED,)))
