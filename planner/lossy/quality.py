"""What a lossy way of decoding costs in quality, measured on a workload, with intervals that small samples deserve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError

Measure = Literal["accuracy", "log-prob"]
Floats = NDArray[np.float64]
CONFIDENCE = 0.95  # of every interval
NORMAL = 1.959964  # standard deviations of it
BISECTIONS = 50  # halvings of [0, 1]
MEASURES = {"accuracy": "share of right answers", "log-prob": "nats per token by the target"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How good texts are beside the target's own, on the same prompts; [low, high] is a 95 % interval of the loss.

    "accuracy" is the share of prompts answered right. "log-prob", where prompts have no answers, is the target's mean
    log-probability of a token: a proxy for how natural the text is to the target, not for truth.
    """

    measure: Measure
    prompts: int
    target: float  # of the target's own texts
    lossy: float  # of the lossy texts
    loss: float  # target - lossy; below 0 where the lossy texts are better
    low: float
    high: float
    same_texts: float  # share of prompts whose text is the target's own, token for token
    lossy_tokens: float  # share of the emitted tokens that only the rule accepted

    def __post_init__(self) -> None:
        if self.prompts < 1 or not self.low <= self.loss <= self.high:
            raise PlanError(f"need prompts and low <= loss <= high, got {self.prompts}, {self}")
        shares = (self.same_texts, self.lossy_tokens)
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise PlanError(f"shares must be in [0, 1], got {shares}")

    @property
    def label(self) -> str:
        """What was lost, in words."""
        return (
            f"{MEASURES[self.measure]} {self.lossy:.4g} instead of {self.target:.4g}, loss {self.loss:.4g} "
            f"({self.low:.4g} to {self.high:.4g}) on {self.prompts} prompts"
        )


def ends_with(text: str, answer: str) -> bool:
    """Return whether the last words of a text are an answer's."""
    wanted = answer.split()
    return bool(wanted) and text.split()[-len(wanted) :] == wanted


def share_interval(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return a share's interval at a confidence (Clopper and Pearson 1934); PlanError unless 0 <= hits <= count > 0."""
    if count < 1 or not 0 <= hits <= count:
        raise PlanError(f"a share needs 0 <= hits <= count and count >= 1, got {hits} of {count}")
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if hits == 0 else _root(lambda share: 1.0 - _at_most(hits - 1, count, share) - tail)
    high = 1.0 if hits == count else _root(lambda share: tail - _at_most(hits, count, share))
    return low, high


def accuracy_loss(target: Sequence[bool], lossy: Sequence[bool]) -> tuple[float, float, float]:
    """Return the loss of accuracy on the same prompts, and its interval.

    Only prompts with one side right and the other wrong count: b lost, c won. The loss is (b - c) / n; its interval
    joins those of b / n and c / n, each at half the error, so it is conservative and never of width 0. PlanError: not
    as many answers on both sides, or none.
    """
    _require_pairs(target, lossy)
    count = len(target)
    lost = sum(own and not other for own, other in zip(target, lossy, strict=True))
    won = sum(other and not own for own, other in zip(target, lossy, strict=True))
    each = 1.0 - (1.0 - CONFIDENCE) / 2.0
    (lost_low, lost_high), (won_low, won_high) = share_interval(lost, count, each), share_interval(won, count, each)
    return (lost - won) / count, lost_low - won_high, lost_high - won_low


def mean_loss(target: Sequence[float], lossy: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean loss over the same prompts, and its interval by the spread of the paired differences.

    PlanError: not as many on both sides, or fewer than 2.
    """
    _require_pairs(target, lossy)
    if len(target) < 2:
        raise PlanError(f"the spread of a loss needs 2 prompts or more, got {len(target)}; add some")
    lost: Floats = np.array(target, dtype=np.float64) - np.array(lossy, dtype=np.float64)
    mean, margin = float(lost.mean()), NORMAL * float(lost.std(ddof=1)) / math.sqrt(len(lost))
    return mean, mean - margin, mean + margin


def _require_pairs(target: Sequence[object], lossy: Sequence[object]) -> None:
    if len(target) != len(lossy) or not target:
        raise PlanError(f"a loss is measured on the same prompts, got {len(target)} and {len(lossy)}; decode them all")


def _at_most(hits: int, count: int, share: float) -> float:
    """Return the chance of so many hits or fewer; 0 < share < 1."""
    known = math.lgamma(count + 1)
    logs = (
        known
        - math.lgamma(place + 1)
        - math.lgamma(count - place + 1)
        + place * math.log(share)
        + (count - place) * math.log1p(-share)
        for place in range(hits + 1)
    )
    return math.fsum(math.exp(value) for value in logs)


def _root(rising: Callable[[float], float]) -> float:
    """Return where a rising function of a share is 0."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        if rising(middle) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
