"""Knobs of strategies: the values each may take, and how a trial takes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import PlanError

if TYPE_CHECKING:
    import optuna

Knobs = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The values a knob may take, both ends included: whole numbers, or positive ones evenly in their logarithm."""

    low: float
    high: float
    is_whole: bool = False

    def __post_init__(self) -> None:
        if not self.low <= self.high or (self.low <= 0.0 and not self.is_whole):
            raise PlanError(f"a knob's range needs low <= high, and low > 0 unless it is whole, got {self}")

    def nearest(self, value: float) -> float:
        """Return the value, or the end it lies beyond."""
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.is_whole else inside

    def suggest(self, trial: optuna.Trial, name: str) -> float:
        """Return what a trial takes."""
        if self.is_whole:
            return trial.suggest_int(name, round(self.low), round(self.high))
        return trial.suggest_float(name, self.low, self.high, log=True)
