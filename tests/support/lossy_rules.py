"""Lossy rules of acceptance applied to one draft whose every place is known: what decoding is held to."""

from __future__ import annotations

from collections.abc import Sequence

from spectune.planner.records.fly_rule import FlyRule, accepted_length, confirmed_mismatches
from spectune.planner.records.pad_rule import PadRule


def fly_accept(matches: Sequence[bool], entropies: Sequence[float], rule: FlyRule) -> int:
    """Return how many drafted tokens stay.

    Args:
        matches: (n,), whether each drafted token is the target's own draw.
        entropies: (n,), of the target's distribution in each one's place, by the rule's definition.
        rule: of acceptance.
    """
    passed = [place for place in confirmed_mismatches(matches, rule) if entropies[place] >= rule.threshold]
    return accepted_length(matches, passed)


def pad_accept(matches: Sequence[bool], probabilities: Sequence[float], chances: Sequence[float], rule: PadRule) -> int:
    """Return how many drafted tokens stay.

    Args:
        matches: (n,), whether each drafted token is the target's own draw.
        probabilities: (n,), the target's, of each drafted token in its place.
        chances: (n,), that each is a pivot; read where a mismatch reaches the floor. What is no number is a pivot.
        rule: of acceptance.
    """
    each = zip(matches, probabilities, chances, strict=True)
    stays = [fits or (probability >= rule.floor and chance < rule.threshold) for fits, probability, chance in each]
    return [*stays, False].index(False)
