"""What is chosen in edge drafting: how a device drafts, and when the server verifies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from ...errors import PlanError
from ..strategies.base import Registered, Strategy, made, require_at_least

if TYPE_CHECKING:
    from ..strategies.confident_chain import ConfidentChainPolicy
else:
    ConfidentChainPolicy = Annotated[Strategy, Registered(lambda one: one.own_kind() == "confident-chain")]

LEAST_MS, MOST_MS = 0.001, 100_000.0  # of a device's times
STEPS = 12  # times that differ by less than e^(1/24) share one
ROUNDING_MS = 1e-6  # of the difference of two times
MOST_AHEAD = 64  # tokens: whoever waits longer drafts for nothing


def confident_chain(length: int, confidence: float) -> ConfidentChainPolicy:
    """Return what a device sends at once."""
    return cast("ConfidentChainPolicy", made("confident-chain", length=length, confidence=confidence))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDrafting:
    """How one device drafts: a chain, sent when the drafter doubts or it is long enough, and on while it waits.

    With confidence 0 chains have full length. Tokens ahead begin the next chain where all of this one is accepted and
    the first of them is the token that the target adds.

    Source: Li et al. 2025, arXiv:2506.09397 (SLED), the speculation controller and asynchronous drafting.
    """

    chain: ConfidentChainPolicy = field(default_factory=lambda: confident_chain(4, 0.6))
    ahead: int = 8  # most tokens drafted behind it until the answer comes

    def __post_init__(self) -> None:
        if not 0 <= self.ahead <= MOST_AHEAD:
            raise PlanError(f"a device drafts 0..{MOST_AHEAD} tokens ahead, got {self.ahead}; draft fewer")

    @property
    def label(self) -> str:
        """Name for people."""
        return f"{self.chain.label}, {self.ahead} ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """When the server verifies: once so many drafts wait, or the oldest has waited so long.

    Source: Li et al. 2025, arXiv:2506.09397 (SLED), the batch planner.
    """

    size: int = 1
    wait_ms: float = 0.0

    def __post_init__(self) -> None:
        require_at_least("the size of a batch", self.size, 1)
        if not (math.isfinite(self.wait_ms) and self.wait_ms >= 0.0):
            raise PlanError(
                f"a draft waits for others some milliseconds, at least 0, got {self.wait_ms}; pass 0 for none"
            )

    @property
    def label(self) -> str:
        """Name for people."""
        return "as they come" if self.size == 1 or not self.wait_ms else f"{self.size} or {self.wait_ms:.3g} ms"

    def is_due(self, waiting: int, oldest_ms: float) -> bool:
        """Return whether so many waiting drafts are verified now, the oldest having waited `oldest_ms`."""
        return waiting >= self.size or (waiting > 0 and oldest_ms >= self.wait_ms - ROUNDING_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDevice:
    """A device: milliseconds of one drafter forward over one new token, and of the way to the server and back."""

    draft_ms: float
    rtt_ms: float  # with receiving and answering a message, without the verification

    def __post_init__(self) -> None:
        if not (LEAST_MS <= self.draft_ms <= MOST_MS and 0.0 <= self.rtt_ms <= MOST_MS):
            raise PlanError(
                f"a device drafts a token in {LEAST_MS:g} to {MOST_MS:g} ms and reaches the server in 0 to {MOST_MS:g} "
                f"ms, got {self.draft_ms} and {self.rtt_ms}; measure them"
            )

    @property
    def about(self) -> EdgeDevice:
        """A device with nearly these times: those that agree within some percent share one."""
        return EdgeDevice(draft_ms=_about(self.draft_ms), rtt_ms=_about(self.rtt_ms))


def _about(ms: float) -> float:
    """Return a time on a grid that grows by a twelfth."""
    if ms < LEAST_MS:
        return 0.0
    return float(f"{min(math.exp(round(math.log(ms) * STEPS) / STEPS), MOST_MS):.4g}")
