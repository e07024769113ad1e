"""A small picture of a promise: its interval, what was predicted and what was measured, over plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from .kept import KeptCell
from .markup import Html, tag

WIDTH, HEIGHT, MARGIN = 176.0, 22.0, 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The speed-ups that all small pictures of a plan span; 1 is among them."""

    low: float
    high: float

    def place(self, value: float) -> float:
        """Return how far right a speed-up lies; one beyond the scale lies at its end."""
        share = (value - self.low) / (self.high - self.low)
        return MARGIN + min(max(share, 0.0), 1.0) * (WIDTH - 2 * MARGIN)


def scale_of(cells: list[KeptCell]) -> Scale:
    """Return the scale of a plan's cells."""
    found = [1.0, *(end for kept in cells for end in _ends(kept))]
    return Scale(low=min(found) - 0.05, high=max(found) + 0.05)


def span(kept: KeptCell, scale: Scale) -> Html:
    """Return the picture of a cell; its numbers are beside it as text."""
    promise, middle = kept.cell.prediction, HEIGHT / 2
    low, said, high = (
        scale.place(each) for each in (promise.speedup_low, promise.speedup_over_plain, promise.speedup_high)
    )
    seen = kept.measured_speedup
    one = scale.place(1.0)
    parts = [
        tag("path", class_="axis", d=f"M{MARGIN:g} {middle:g}H{WIDTH - MARGIN:g}"),
        tag("path", class_="one", d=f"M{one:.1f} 3V{HEIGHT - 3:g}"),
        tag("path", class_="range", d=f"M{low:.1f} {middle:g}H{max(high, low + 0.1):.1f}"),
        tag("circle", class_="said", cx=f"{said:.1f}", cy=middle, r=3.6),
    ]
    if seen is not None:
        parts.append(tag("path", class_="seen", d=f"M{scale.place(seen):.1f} {middle - 6:g}l4 6-4 6-4-6z"))
    return tag("svg", parts, class_="span", viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", aria_hidden="true")


def _ends(kept: KeptCell) -> list[float]:
    promise, seen = kept.cell.prediction, kept.measured_speedup
    return [promise.speedup_low, promise.speedup_high, *([] if seen is None else [seen])]
