"""One axis of a chart: which values it spans, how they are spaced, and where it carries a number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import MeasurementError

LOG_FROM = 16.0  # largest over smallest value
MOST_TICKS = 8
LEAST_RATIO = 4.0  # of the ends of a logarithmic axis of times: noise is not to look like a slope
ROOM = 1.12  # of a logarithmic axis beyond its outermost values


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A span of values; low < high, and both positive where the spacing is logarithmic."""

    title: str
    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False
    unit: str = ""  # follows every number

    def __post_init__(self) -> None:
        if not self.low < self.high or not all(map(math.isfinite, (self.low, self.high))):
            raise MeasurementError(f"axis {self.title!r} needs low < high, got {self.low} and {self.high}")
        if self.is_log and self.low <= 0.0:
            raise MeasurementError(f"logarithmic axis {self.title!r} starts at {self.low}; it needs positive values")

    def place(self, value: float) -> float:
        """Return where a value lies: 0 at the low end, 1 at the high end."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        """Return the number at a tick."""
        return f"{number(tick)}{self.unit}".replace("-", "\N{MINUS SIGN}")


def axis_of_counts(title: str, counts: Iterable[int]) -> Axis:
    """Return an axis for whole numbers of at least 1; powers of two where they span much."""
    known = list(counts)
    low, high = _ends(known)
    if spans_much(known):
        powers = [2.0**power for power in range(40) if low <= 2.0**power <= high]
        return Axis(title=title, low=low / ROOM, high=high * ROOM, ticks=_thinned(powers), is_log=True)
    return axis_of_steps(title, round(low), round(high))


def other_counts(axis: Axis, counts: Iterable[int]) -> Axis | None:
    """Return the axis of the same counts spaced the other way; None where they do not differ."""
    known = list(counts)
    low, high = _ends(known)
    if low == high:
        return None
    if axis.is_log:
        return axis_of_steps(axis.title, round(low), round(high))
    powers = [2.0**power for power in range(40) if low <= 2.0**power <= high]
    if len(powers) < 2:  # which tell no distance
        return axis_of_doublings(axis.title, known)
    return Axis(title=axis.title, low=low / ROOM, high=high * ROOM, ticks=_thinned(powers), is_log=True)


def axis_of_doublings(title: str, counts: Iterable[int]) -> Axis:
    """Return an axis for whole numbers of at least 1 that are compared by their ratios; each of them is a tick."""
    known = sorted(set(counts))
    low, high = _ends(known)
    if low == high:
        return axis_of_steps(title, known[0], known[0])
    return Axis(title=title, low=low / ROOM, high=high * ROOM, ticks=_thinned([float(n) for n in known]), is_log=True)


def axis_of_steps(title: str, first: int, last: int) -> Axis:
    """Return an axis for whole numbers, evenly spaced."""
    room = 0.04 * (last - first) or 0.5
    return Axis(title=title, low=first - room, high=last + room, ticks=_even(first, last, least_step=1.0))


def spans_much(values: Iterable[float]) -> bool:
    """Say whether positive values differ so much that ratios read better than differences."""
    known = list(values)
    return bool(known) and max(known) >= LOG_FROM * min(known)


def axis_of_times(title: str, values: Iterable[float], *, is_log: bool) -> Axis:
    """Return an axis for positive values; it begins at zero unless it is logarithmic."""
    low, high = _ends(values)
    if not is_log:
        return Axis(title=title, low=0.0, high=high * 1.06, ticks=_even(0.0, high * 1.06))
    room = max(ROOM, math.sqrt(LEAST_RATIO * low / high))
    low, high = low / room, high * room
    decades = [10.0**power for power in range(-9, 12)]
    fine = [factor * decade for decade in decades for factor in (1.0, 2.0, 5.0) if low <= factor * decade <= high]
    coarse = [decade for decade in decades if low <= decade <= high]
    ticks = fine if len(fine) <= MOST_TICKS else coarse
    return Axis(title=title, low=low, high=high, ticks=_thinned(ticks), is_log=True)


def axis_of_errors(title: str, percents: Iterable[float]) -> Axis:
    """Return an axis in percent with 0 in its middle, and at least 1 % to either side."""
    most = max([1.0, *(abs(percent) for percent in percents)]) * ROOM
    return Axis(title=title, low=-most, high=most, ticks=_even(-most, most), unit="%")


def axis_of_shares(title: str) -> Axis:
    """Return an axis from 0 to 1, both seen as percent."""
    return Axis(title=title, low=0.0, high=100.0 * ROOM**0.5, ticks=(0.0, 25.0, 50.0, 75.0, 100.0), unit="%")


def number(value: float) -> str:
    """Return a round number for people, thousands set apart."""
    if value == 0.0 or abs(value) >= 1000.0:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def significant(value: float, digits: int = 3) -> str:
    """Return a measured number with so many digits that count, zeros at its end included."""
    if value == 0.0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{max(decimals, 0)}f}"


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    if not known:
        raise MeasurementError("a chart has nothing to draw: every cell failed; measure a smaller shape")
    return min(known), max(known)


def _thinned(ticks: list[float]) -> tuple[float, ...]:
    return tuple(ticks[:: math.ceil(len(ticks) / MOST_TICKS)])


def _even(low: float, high: float, least_step: float = 0.0) -> tuple[float, ...]:
    rough = (high - low) / 8.0 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough * 0.999), least_step)
    first = math.ceil(low / step - 1e-9)
    return tuple(step * place for place in range(first, math.floor(high / step + 1e-9) + 1))
