"""PAD's acceptance rule: a drafted token that is not the target's may stay where it does not decide the answer.

LOSSY: the text is no longer the target's own. Nothing here is used unless `allow_lossy` was given.

A token is a *pivot* where having it instead of the target's own makes the task's answer worse; a classifier gives the
chance. Let m_j say whether drafted token j is the target's own draw there, p_j be the target's probability of it, and
s_j the chance that it is a pivot, j = 0 .. n - 1. A mismatch stays where both hold:

    floor        p_j >= floor
    threshold    s_j < threshold

Else the chain ends in front of it, with the target's draw. What the target says itself always stays.

Source: Ziashahabi et al. 2025, PAD, arXiv:2511.00351.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError

FLOOR = 1e-4  # the published least probability


@dataclass(frozen=True, slots=True, kw_only=True)
class PadRule:
    """When a mismatch stays; both numbers lie in [0, 1].

    At threshold 0 every token is a pivot: strict verification. Published are 0.3, 0.5 and 0.7.
    """

    threshold: float = 0.5  # pivot chance from which on a token is a pivot
    floor: float = FLOOR  # least probability by the target of a token that may stay; 1 admits none

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0 or not 0.0 <= self.floor <= 1.0:
            raise PlanError(f"threshold and floor are chances in [0, 1], got {self.threshold} and {self.floor}")

    @property
    def label(self) -> str:
        """Name for people."""
        return f"PAD, pivots from {self.threshold:g}, floor {self.floor:g}"


def expected_accepted(length: int, match: float, passes: float) -> float:
    """Return the mean number of drafted tokens that stay, were places independent; PlanError: an argument out of range.

        a' = a + (1 - a) g,  E(n) = a' + a'^2 + ... + a'^n

    `length` is n >= 0, `match` a, the chance that a drafted token is the target's own, `passes` g, the chance that the
    rule accepts a mismatch. Source: the sum of Leviathan et al. 2023, arXiv:2211.17192, with the raised acceptance.
    """
    if length < 0 or not 0.0 <= match <= 1.0 or not 0.0 <= passes <= 1.0:
        raise PlanError(f"need length >= 0 and chances in [0, 1], got {length}, {match} and {passes}")
    raised = match + (1.0 - match) * passes
    return sum(raised**tokens for tokens in range(1, length + 1))
