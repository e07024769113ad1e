"""One cell of a latency surface as people see it: a mark in a chart, a row of a table."""

from __future__ import annotations

import math

from ..profiler.records.measurement import Measurement
from ..profiler.records.surface import HeldOut
from .axis import significant
from .figure import Kind, Mark

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
