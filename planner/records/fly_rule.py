"""FLy's acceptance rule: a drafted token that is not the target's may stay where the target is unsure.

LOSSY: the text is no longer the target's own. Nothing here is used unless `allow_lossy` was given.

Let m_j say whether drafted token j is the target's own draw there, and H_j be the entropy of the target's distribution
in its place, j = 0 .. n - 1. A mismatch stays where both hold:

    gate      H_j >= threshold
    window    m_i for all i in j + 1 .. j + following, and j + window <= n - 1

Else the chain ends in front of it, with the target's draw. The window always reads the target's own matches, never what
passed before.

Source: Li et al. 2025, FLy, arXiv:2511.22972; the published code (AMD-AGI/FLy) and vLLM's rejection method "fly" for
where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import PlanError

Entropy = Literal["top-nats", "normalised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlyRule:
    """When a mismatch stays; the defaults are vLLM's.

    "top-nats" (published code, vLLM) is -sum p ln p over the `top` likeliest tokens, p of the whole distribution, in
    nats, at most ln(top) for top >= 3; "normalised" (paper) is the whole entropy over ln(vocabulary), in [0, 1]. A
    threshold of one means nothing to the other.
    """

    threshold: float = 0.3  # least entropy of an open gate: 0 opens all, one out of reach none
    window: int = 6  # drafted tokens a mismatch needs behind it
    entropy: Entropy = "top-nats"
    top: int = 3
    counts_itself: bool = False  # as in the published code: one token fewer has to match

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < math.inf:
            raise PlanError(f"a gate's threshold must be finite and at least 0, got {self.threshold}")
        if self.window < 1 or self.top < 1:
            raise PlanError(f"window and top must be at least 1, got {self.window} and {self.top}; raise them")

    @property
    def following(self) -> int:
        """Tokens behind a mismatch that must match."""
        return self.window - 1 if self.counts_itself else self.window

    @property
    def label(self) -> str:
        """Name for people."""
        unit = f"nats of the best {self.top}" if self.entropy == "top-nats" else "of ln(vocabulary)"
        itself = ", itself counted" if self.counts_itself else ""
        return f"FLy, gate {self.threshold:g} {unit}, window {self.window}{itself}"


def confirmed_mismatches(matches: Sequence[bool], rule: FlyRule) -> list[int]:
    """Return the places of the mismatches that the rule's window, without its gate, lets pass, ascending.

    `matches` (n,) say whether each drafted token is the target's own draw.
    """
    last = len(matches) - 1 - rule.window
    return [
        place
        for place in range(last + 1)
        if not matches[place] and all(matches[place + 1 : place + 1 + rule.following])
    ]


def accepted_length(matches: Sequence[bool], passed: Collection[int]) -> int:
    """Return how many drafted tokens stay: up to the first mismatch that is not among those that pass."""
    return next((place for place, fits in enumerate(matches) if not fits and place not in passed), len(matches))


def expected_accepted(length: int, match: float, is_open: float, rule: FlyRule) -> float:
    """Return the mean number of drafted tokens that stay, were places independent; PlanError: an argument out of range.

        E(0) = 0,  E(n) = a (1 + E(n - 1)) + [n > window] (1 - a) g a^f (1 + f + E(n - 1 - f)),  f = `rule.following`

    `length` is n >= 0, `match` a, the chance that a drafted token is the target's own, `is_open` g, the chance that the
    gate is open at a mismatch.
    """
    if length < 0 or not 0.0 <= match <= 1.0 or not 0.0 <= is_open <= 1.0:
        raise PlanError(f"need length >= 0 and chances in [0, 1], got {length}, {match} and {is_open}")
    behind = rule.following
    expected = [0.0]
    for tokens in range(1, length + 1):
        own = match * (1.0 + expected[tokens - 1])
        passes = (1.0 - match) * is_open * match**behind if tokens > rule.window else 0.0
        expected.append(own + passes * (1 + behind + (expected[tokens - 1 - behind] if passes else 0.0)))
    return expected[length]
