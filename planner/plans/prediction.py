"""What a plan promises of a way of decoding, and how far that may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...errors import PlanError
from .observation import LARGEST

SDS_OF_90_PERCENT = 1.645  # of a normal distribution, to either side


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorParts:
    """Relative standard errors of a predicted speed, and the optimism already taken off it."""

    acceptance: float  # the recorded texts are a sample, and so are future ones; the larger the fewer tell their spread
    surfaces: float  # of the measured latencies, weighted by their share of the round
    drift: float  # the device's pace strays between measuring and decoding; older plans know that of one session alone
    optimism: float  # relative; how much choosing on the recorded texts flattered the choice

    def __post_init__(self) -> None:
        if not -LARGEST <= self.optimism < 1.0:
            raise PlanError(f"optimism is a share of a speed that is left, below 1, got {self.optimism}; plan again")

    @property
    def margin(self) -> float:
        """Half of the 90 % interval, relative."""
        return SDS_OF_90_PERCENT * math.hypot(self.acceptance, self.surfaces, self.drift)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a policy promises in the steady state of a cell; [low, high] are 90 % intervals over texts."""

    tokens_per_s: float  # of all sequences of the batch
    low: float
    high: float
    tokens_per_round: float  # per sequence
    round_ms: float
    draft_ms: float
    verify_ms: float
    host_ms: float
    speedup_over_plain: float
    speedup_low: float
    speedup_high: float
    errors: ErrorParts

    def __post_init__(self) -> None:
        divided = (self.tokens_per_s, self.tokens_per_round, self.round_ms)
        parts = (self.draft_ms, self.verify_ms, self.host_ms)
        if not 0.0 <= self.low <= self.tokens_per_s <= self.high < math.inf:
            raise PlanError(f"need 0 <= low <= tokens_per_s <= high, got {self.low}, {self.tokens_per_s}, {self.high}")
        if not 0.0 <= self.speedup_low <= self.speedup_over_plain <= self.speedup_high < math.inf:
            raise PlanError(
                f"need 0 <= speedup_low <= speedup_over_plain <= speedup_high, got {self.speedup_low}, "
                f"{self.speedup_over_plain}, {self.speedup_high}"
            )
        if not all(1.0 / LARGEST <= each <= LARGEST for each in divided):
            raise PlanError(
                f"speed, tokens and time of a round must be above 0 and at most {LARGEST:g}, got {divided}; plan again"
            )
        if not all(0.0 <= each <= LARGEST for each in parts):
            raise PlanError(f"parts of a round must be 0 to {LARGEST:g} ms, got {parts}; plan again")

    def slower(self, factor: float) -> Prediction:
        """Return the prediction of rounds that take `factor` times as long, in all their parts alike."""
        speeds, times = ("tokens_per_s", "low", "high"), ("round_ms", "draft_ms", "verify_ms", "host_ms")
        moved = {name: getattr(self, name) / factor for name in speeds}
        moved |= {name: getattr(self, name) * factor for name in times}
        return replace(self, **moved)
