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


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReading:
    """Milliseconds of the whole device for one prompt, during which no sequence of the batch decodes.

    From `pays_from` new tokens on, requests are faster than by plain decoding. It is 0 where no model drafts, None for
    plain decoding and where it is no slower.
    """

    prompt_tokens: int
    target_ms: float | None  # None where it was not timed
    drafter_ms: float  # by all models that draft; 0 where none does
    pays_from: float | None
    new_tokens: int | None = None  # most of an answer, where requests chose the plan
    decoded_tokens: float | None = None  # their mean; in older plans all but the first
    cached_tokens: int = 0  # of the prompt, not read again, since an earlier text began so

    def __post_init__(self) -> None:
        told = (self.target_ms or 0.0, self.drafter_ms, self.pays_from or 0.0, self.decoded_tokens or 0.0)
        if self.prompt_tokens < 1 or not all(math.isfinite(each) and each >= 0.0 for each in told):
            raise PlanError(f"reading a prompt of 1 token or more takes finite times of at least 0, got {self}")
        if not 0 <= self.cached_tokens < self.prompt_tokens:
            raise PlanError(
                f"of {self.prompt_tokens} tokens of a prompt the last is always read, got {self.cached_tokens} cached"
            )

    def compared(self, tokens_per_s: float) -> float:
        """Return the tokens per second of the plan's own decoding as a plan that is chosen by requests compares it."""
        if self.new_tokens is None:
            return tokens_per_s
        decoded = self.decoded_tokens or max(self.new_tokens - 1, 1)
        return 1000.0 / (1000.0 / tokens_per_s + self.drafter_ms / decoded)

    def of_requests(self, tokens_per_s: float, new_tokens: int, *, is_drafted: bool = True) -> float:
        """Return the new tokens per second of requests, from those of decoding and the reading of prompts.

        `new_tokens` of an answer are 2 or more; `is_drafted` says whether the drafters read, too.
        """
        read_ms = (self.target_ms or 0.0) + (self.drafter_ms if is_drafted else 0.0)
        return 1000.0 * new_tokens / (1000.0 * (new_tokens - 1) / tokens_per_s + read_ms)


def pays_from(drafter_ms: float, tokens_per_s: float, plain_tokens_per_s: float) -> float | None:
    """Return from how many new tokens on drafting gains what the drafters' reading took; None where it never does."""
    gained_ms = 1000.0 / plain_tokens_per_s - 1000.0 / tokens_per_s
    if not drafter_ms:
        return 0.0 if gained_ms > 0.0 else None
    return 1.0 + drafter_ms / gained_ms if gained_ms > 0.0 else None
