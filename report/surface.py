"""The picture of a latency surface: one panel per batch, one line per context."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby

import numpy as np

from ..errors import MeasurementError
from ..profiler.records.measurement import Measurement
from ..profiler.records.role import Origin
from ..profiler.records.surface import HeldOut, LatencySurface
from .axis import Axis, axis_of_counts, axis_of_errors, axis_of_times, other_counts, significant, spans_much
from .figure import Figure, Grid, Kind, LineSeries, Mark, Panel, ReferenceLine, Stroke, Symbol

COLUMNS = ("batch", "context", "tokens", "median ms", "± ms", "repeats", "purpose", "surface ms", "off by", "failure")


def cell_kind(cell: Measurement) -> Kind:
    """Return how a cell is drawn."""
    if cell.failure is not None:
        return "failed"
    return "held-out" if cell.purpose == "held-out" else "measured"


def cell_mark(cell: Measurement) -> Mark:
    """Return the mark of a cell at its milliseconds, with the standard error of its median."""
    text = "\n".join(_lines(cell, None))
    if cell.failure is not None:
        return Mark(kind="failed", x=cell.tokens, y=None, text=text)
    low, high = _whisker(cell)
    return Mark(
        kind=cell_kind(cell),
        x=cell.tokens,
        y=cell.median_ms,
        low=low,
        high=high,
        text=text,
        repeats=cell.repeats_ms,
    )


def error_mark(cell: Measurement, said: HeldOut | None) -> Mark:
    """Return the mark of a held-out cell at the error of what the surface says there, in percent of the measured."""
    text = "\n".join(_lines(cell, said))
    if said is None:  # it failed, or the surface does not reach there
        return Mark(kind=cell_kind(cell), x=cell.tokens, y=None, text=text)
    low, high = _whisker(cell)
    at = [100.0 * (said.predicted_ms / ms - 1.0) for ms in (high, cell.median_ms, low)]
    return Mark(kind="held-out", x=cell.tokens, low=at[0], y=at[1], high=at[2], text=text)


def cell_row(cell: Measurement, said: HeldOut | None = None) -> tuple[str, ...]:
    """Return a cell as one row of the table, see COLUMNS; what is not known is empty."""
    shape = (f"{cell.batch:,}", f"{cell.context_tokens:,}", f"{cell.tokens:,}")
    judged = ("", "") if said is None else (significant(said.predicted_ms), f"{said.error:.1%}")
    if cell.failure is not None:
        return (*shape, "", "", "0", cell.purpose, *judged, cell.failure)
    spread = significant(cell.spread_ms, 2) if math.isfinite(cell.spread_ms) else ""
    return (*shape, significant(cell.median_ms), spread, f"{len(cell.repeats_ms):,}", cell.purpose, *judged, "")


def _whisker(cell: Measurement) -> tuple[float, float]:
    """Return the median less and plus its standard error, never below the fastest repeat; the median if not known."""
    spread = cell.spread_ms if math.isfinite(cell.spread_ms) else 0.0
    return max(cell.median_ms - spread, min(cell.steady_ms)), cell.median_ms + spread


def _lines(cell: Measurement, said: HeldOut | None) -> list[str]:
    shape = f"batch {cell.batch}, context {cell.context_tokens:,}, tokens {cell.tokens:,}"
    if cell.failure is not None:
        return [shape, f"could not run: {cell.failure}"]
    spread = f" ± {significant(cell.spread_ms, 2)}" if math.isfinite(cell.spread_ms) else ""
    fastest, slowest = significant(min(cell.repeats_ms)), significant(max(cell.repeats_ms))
    lines = [shape, f"{significant(cell.median_ms)}{spread} ms"]
    lines.append(f"{len(cell.repeats_ms)} repeats, {fastest} to {slowest} ms")
    if said is not None:
        lines.append(f"the surface says {significant(said.predicted_ms)} ms, off by {said.error:.1%}")
    elif cell.purpose == "held-out":
        lines.append("the surface does not reach here")
    return lines


WORST = 0.95  # the share of held-out cells whose error the larger figure bounds
MOST_POINTS = 400  # of one stroke; shapes between them are left out, cells never
WHENCE: Mapping[Origin, str] = {
    "measured": "measured",
    "imported": "measured elsewhere",
    "estimated": "estimated, not measured",
    "bound": "a bound, not measured",
}

Said = Mapping[Measurement, HeldOut]


def surface_figure(surface: LatencySurface, *, device: str, model: str) -> Figure:
    """Return the picture of a surface, milliseconds against tokens; raise MeasurementError where every cell failed."""
    said = {each.cell: each for each in surface.held_out()}
    cells = sorted(surface.measurements, key=lambda cell: (cell.batch, cell.context_tokens, cell.tokens))
    return Figure(
        title=f"{model}: what one {surface.role} forward costs",
        facts=(f"on {device}", _how(surface), *_judgement(said)),
        panels=(*_batch_panels(surface), *_error_panels(surface, said)),
        legend=tuple(_legend(surface)),
        grid=Grid(columns=COLUMNS, rows=tuple(cell_row(cell, said.get(cell)) for cell in cells)).filled(),
    )


def _batch_panels(surface: LatencySurface) -> Iterator[Panel]:
    """Yield one panel per batch, each with its own scale: what counts is what more tokens cost over few."""
    cells = [cell for cell in surface.measurements if cell.purpose != "held-out"]
    contexts = sorted({cell.context_tokens for cell in cells})
    shades = {context: place / max(len(contexts) - 1, 1) for place, context in enumerate(contexts)}
    lines = {batch: tuple(_context_lines(surface, batch, shades)) for batch in sorted({cell.batch for cell in cells})}
    heights = {batch: list(_heights(each)) for batch, each in lines.items()}
    every_height = list(chain.from_iterable(heights.values()))
    is_log = any(spans_much(each) for each in heights.values())
    x = _tokens_axis(surface)
    for batch in lines:
        values = heights[batch] or every_height
        yield Panel(
            title=f"batch {batch:,}",
            x=x,
            y=axis_of_times("milliseconds", values, is_log=is_log),
            lines=lines[batch],
            label_title="context",
            strip_title="failed",
            other_x=other_counts(x, [cell.tokens for cell in surface.measurements]),
            other_y=axis_of_times("milliseconds", values, is_log=not is_log),
        )


def _heights(lines: Iterable[LineSeries]) -> Iterator[float]:
    for line in lines:
        yield from (end for mark in line.marks for end in (mark.low, mark.high) if end is not None)
        yield from (ms for stroke in line.strokes for _, ms in stroke)


def _error_panels(surface: LatencySurface, said: Said) -> Iterator[Panel]:
    cells = [cell for cell in surface.measurements if cell.purpose == "held-out"]
    if not cells:
        return
    marks = tuple(error_mark(cell, said.get(cell)) for cell in cells)
    line = LineSeries(label="", shade=None, marks=marks)
    errors = [100.0 * each.error for each in said.values()]
    most = [float(np.quantile(errors, WORST))] if errors else []
    band = [
        ReferenceLine(y=sign * error, label=f"{WORST:.0%}" if sign > 0 else "") for error in most for sign in (1, -1)
    ]
    yield Panel(
        title="held-out cells of all batches",
        x=_tokens_axis(surface),
        y=axis_of_errors("error of the surface", _heights([line])),
        lines=(line,),
        rules=(ReferenceLine(y=0.0, label="exact"), *band),
        strip_title="beyond",
    )


def _tokens_axis(surface: LatencySurface) -> Axis:
    return axis_of_counts("tokens per sequence", [cell.tokens for cell in surface.measurements])


def _context_lines(surface: LatencySurface, batch: int, shades: Mapping[int, float]) -> Iterator[LineSeries]:
    for context, shade in shades.items():
        cells = [cell for cell in surface.measurements if (cell.batch, cell.context_tokens) == (batch, context)]
        marks = tuple(cell_mark(cell) for cell in cells if cell.purpose != "held-out")
        if marks:
            strokes = tuple(_strokes(surface, batch, context))
            padded = tuple(_padded(surface, batch, context))
            yield LineSeries(label=f"{context:,}", shade=shade, marks=marks, strokes=strokes, padded=padded)


def _strokes(surface: LatencySurface, batch: int, context: int) -> Iterator[Stroke]:
    counts = [cell.tokens for cell in surface.measurements if cell.batch == batch]
    between = np.geomspace(min(counts), max(counts), MOST_POINTS).astype(int).tolist()
    stroke: list[tuple[float, float]] = []
    for tokens in sorted({*counts, *between}):
        ms = _cost(surface, batch, context, tokens)
        if ms is not None:
            stroke.append((tokens, ms))
        elif stroke:
            yield tuple(stroke)
            stroke = []
    if stroke:
        yield tuple(stroke)


def _padded(surface: LatencySurface, batch: int, context: int) -> Iterator[Stroke]:
    """Yield what is paid where a forward runs padded to a larger measured shape, a stroke per run of such counts."""
    ran = [cell.tokens for cell in surface.measurements if cell.batch == batch and cell.failure is None]
    try:
        costs = surface.padded(batch, context, max(ran, default=0))
    except MeasurementError:  # the surface does not reach so far at this context
        return
    is_padded = costs.run_tokens > np.arange(len(costs.run_tokens))
    for was_padded, part in groupby(range(1, len(costs.ms)), key=lambda tokens: bool(is_padded[tokens])):
        counts = list(part)
        if was_padded:
            yield tuple((tokens, float(costs.ms[tokens])) for tokens in (counts[0], counts[-1]))


def _cost(surface: LatencySurface, batch: int, context: int, tokens: int) -> float | None:
    try:
        return surface.latency(batch, context, tokens).ms
    except MeasurementError:
        return None


def _how(surface: LatencySurface) -> str:
    kernel = f", {surface.attention} attention" if surface.attention else ""
    return f"{surface.regime}, {surface.dtype}{kernel}; {len(surface.measurements)} cells, {WHENCE[surface.origin]}"


def _judgement(said: Said) -> tuple[str, ...]:
    if not said:
        return ()
    errors = [each.error for each in said.values()]
    middle, most = statistics.median(errors), float(np.quantile(errors, WORST))
    return (f"held-out error: median {middle:.1%}, 95th percentile {most:.1%}, of {len(errors)} cells",)


def _legend(surface: LatencySurface) -> Iterator[tuple[Symbol, str]]:
    kinds = {cell_kind(cell) for cell in surface.measurements}
    meaning: dict[Symbol, str] = {
        "measured": f"{WHENCE[surface.origin]}, ± standard error of the median",
        "held-out": "measured, but no part of the surface",
        "failed": "could not run",
    }
    yield "line", "the surface"
    yield from ((kind, text) for kind, text in meaning.items() if kind in kinds)
