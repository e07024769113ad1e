"""Draft from the text itself: prompt lookup, its suffix automaton, Cacheback's table. No model."""

from __future__ import annotations

from collections.abc import Sequence as Many
from functools import lru_cache

import numpy as np

from ...planner.records.draft import DraftBatch, chains_of
from ...planner.strategies import TreePolicy
from ...planner.strategies.text import TextPolicy
from ...planner.strategies.texts import Texts
from ..batch.sequence import Sequence
from .base import Drafter


class LookupDrafter(Drafter):
    """Drafts from each sequence's own text, with the planner's own code.

    A text's index is built when a policy first needs it, and then extended by committed tokens only: it learns neither
    from rejected drafts nor from other sequences.

    Source: Saxena 2023, prompt lookup decoding; arXiv:2411.10666; arXiv:2411.04975; arXiv:2511.21699.
    """

    overlap = "text"

    def __init__(self) -> None:
        self._texts = Texts()

    def admit(self, slot: int, sequence: Sequence, held: int = 0) -> None:
        """Drop the slot's former text."""
        self._texts.admit(slot)

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`."""
        self._texts.move(source, target)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return one tree per sequence, only its root where the text has no copy."""
        assert isinstance(policy, TextPolicy)
        return self._texts.draft([s.tokens for s in sequences], policy)


@lru_cache(maxsize=256)
def roots_of(batch: int) -> DraftBatch:
    """Return trees without drafts."""
    return chains([[]] * batch)


def chains(drafts: Many[Many[int]]) -> DraftBatch:
    """Return chains of any lengths as one batch of trees, padded to the longest."""
    nodes = 1 + max(len(d) for d in drafts)
    tokens = np.full((len(drafts), nodes), -1, dtype=np.int64)
    for row, draft in enumerate(drafts):
        tokens[row, 1 : 1 + len(draft)] = draft
    return chains_of(tokens, np.array([len(d) for d in drafts], dtype=np.int64), ())
