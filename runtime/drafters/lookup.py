"""Prompt lookup: propose what followed the same n-gram earlier in the text. No model, no state."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from ...planner.draft import DraftBatch, chains_of
from ...planner.lookup import find_continuation
from ...planner.policy import LookupPolicy, TreePolicy
from ..requests import Sequence


class LookupDrafter:
    """Drafts chains from each sequence's own text.

    Source: Saxena 2023, prompt lookup decoding; transformers' `prompt_lookup_num_tokens`.
    """

    def __init__(self) -> None:
        """Nothing to load."""
        self.forwards = 0

    def admit(self, slot: int, sequence: Sequence) -> None:
        """Do nothing: the text is the state."""

    def move(self, source: int, target: int) -> None:
        """Do nothing: the text is the state."""

    def fresh(self, sequences: Many[Sequence]) -> int:
        """Return 0: nothing is read into a model."""
        return 0

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return one chain per sequence, empty where no n-gram recurs."""
        assert isinstance(policy, LookupPolicy)
        found = [find_continuation(s.tokens, policy.length, policy.max_ngram, policy.min_ngram) for s in sequences]
        return chains(found)


def chains(drafts: Many[Many[int]]) -> DraftBatch:
    """Return chains of any lengths as one batch of trees, padded to the longest."""
    nodes = 1 + max(len(d) for d in drafts)
    tokens = np.full((len(drafts), nodes), -1, dtype=np.int64)
    for row, draft in enumerate(drafts):
        tokens[row, 1 : 1 + len(draft)] = draft
    return chains_of(tokens, np.array([len(d) for d in drafts], dtype=np.int64), ())
