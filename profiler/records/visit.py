"""One call of one cell as it was timed: what a session writes down before the next one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import MeasurementError
from .measurement import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One timed call, or the failure to run one."""

    ordinal: int  # place in the session, from 0; distinct
    surface: int  # which of the session's surfaces, from 0
    batch: int
    context_tokens: int
    tokens: int
    purpose: Purpose
    round: int  # visits of one round meet the same mood of the machine
    spent_s: float  # seconds of its budget the session had used when the call ended
    ms: float | None = None
    failure: str | None = None

    def __post_init__(self) -> None:
        if min(self.ordinal, self.surface, self.round, self.context_tokens) < 0 or min(self.batch, self.tokens) < 1:
            raise MeasurementError(f"{self}: counts must not be negative, batch and tokens at least 1")
        if (self.ms is None) == (self.failure is None):
            raise MeasurementError(f"{self}: give ms or failure, not both and not neither")
        if self.ms is not None and not 0.0 < self.ms < math.inf:
            raise MeasurementError(f"{self}: ms must be positive and finite")
