"""One shape of one forward, timed again and again."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from ...errors import MeasurementError

NORMAL_FROM_MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
MEDIAN_OVER_MEAN = math.sqrt(math.pi / 2)  # standard error of a normal sample's median over that of its mean

Purpose = Literal["design", "held-out", "sentinel"]
HELD_OUT: Purpose = "held-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One grid point timed on one device; raw repeats are stored, summaries are derived, a failure is data.

    How slow the whole device was at the moment of repeat i is `drift[i]`, told by the calls of other cells just before
    and after it and kept with the cell because a surface may join cells of several sessions.
    """

    batch: int  # sequences
    context_tokens: int  # committed tokens per sequence before the forward
    tokens: int  # tokens per sequence fed to the forward, root included
    repeats_ms: tuple[float, ...] = ()  # as timed; warm-up calls are not in here
    drift: tuple[float, ...] = ()  # per repeat, 1.0 at a typical moment; empty where it is not known
    failure: str | None = None  # why the point could not run, e.g. "out of memory"
    disturbed: tuple[bool, ...] = ()  # per repeat, whether its moment was disturbed; empty: none was
    purpose: Purpose = "design"  # a held-out cell judges its surface and is no part of it; a sentinel is revisited

    def __post_init__(self) -> None:
        if self.batch < 1 or self.tokens < 1 or self.context_tokens < 0:
            raise MeasurementError(f"{self}: need batch >= 1, tokens >= 1 and context_tokens >= 0")
        if bool(self.repeats_ms) == bool(self.failure):
            raise MeasurementError(f"{self}: give repeats_ms or failure, not both and not neither")
        if not all(0.0 < repeat < math.inf for repeat in self.repeats_ms):
            raise MeasurementError(f"{self}: repeats_ms must be positive and finite")
        if self.drift and len(self.drift) != len(self.repeats_ms):
            raise MeasurementError(f"{self}: give one drift per repeat, or none at all")
        if not all(0.0 < slowness < math.inf for slowness in self.drift):
            raise MeasurementError(f"{self}: drift must be positive and finite")
        if self.disturbed and len(self.disturbed) != len(self.repeats_ms):
            raise MeasurementError(f"{self}: say of every repeat whether it was disturbed, or of none")
        if self.purpose not in ("design", "held-out", "sentinel"):
            raise MeasurementError(f"{self}: purpose must be design, held-out or sentinel")

    @property
    def steady_ms(self) -> tuple[float, ...]:
        """Repeats with the drift of their moments divided out; disturbed ones only where there are no others."""
        drift = self.drift or (1.0,) * len(self.repeats_ms)
        steady = [repeat / slowness for repeat, slowness in zip(self.repeats_ms, drift, strict=True)]
        if self.disturbed and not all(self.disturbed):
            return tuple(ms for ms, is_off in zip(steady, self.disturbed, strict=True) if not is_off)
        return tuple(steady)

    @property
    def median_ms(self) -> float:
        """Median steady repeat in milliseconds; MeasurementError where the cell failed."""
        self._refuse_failure()
        return statistics.median(self.steady_ms)

    @property
    def spread_ms(self) -> float:
        """Standard error of the median in ms (by its MAD), inf for one repeat; MeasurementError if the cell failed."""
        middle = self.median_ms
        steady = self.steady_ms
        if len(steady) == 1:
            return math.inf
        deviation = NORMAL_FROM_MAD * statistics.median(abs(repeat - middle) for repeat in steady)
        return MEDIAN_OVER_MEAN * deviation / math.sqrt(len(steady))

    def _refuse_failure(self) -> None:
        if self.failure is not None:
            shape = f"batch {self.batch}, context {self.context_tokens}, tokens {self.tokens}"
            raise MeasurementError(f"{shape} could not run ({self.failure}); choose a shape that was measured")
