"""A model and the text as one drafter, for hybrids and for policies of the model alone."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from ...planner.kernels.arrays import Ints
from ...planner.records.draft import DraftBatch
from ...planner.strategies import TreePolicy
from ...planner.strategies.hybrid import HybridPolicy
from ...planner.strategies.text import PADDING
from ...planner.strategies.texts import Texts
from ..batch.sequence import Sequence
from ..growth.captured import CapturedGrowth
from ..models.forward import LeftStates
from ..models.kv_cache import KeyValueCache
from .base import Drafter
from .model import ModelDrafter


def _merged(copies: DraftBatch, drafted: DraftBatch, slots: Many[int]) -> DraftBatch:
    sizes = copies.sizes.copy()
    sizes[slots] = drafted.sizes[slots]
    nodes = max(sizes.tolist())
    copied, grown = min(copies.tokens.shape[1], nodes), min(drafted.tokens.shape[1], nodes)
    padded = np.empty((3, len(sizes), nodes), dtype=np.int64)
    padded[:] = PADDING
    for part, text, model in zip(padded, _parts_of(copies), _parts_of(drafted), strict=True):
        part[:, :copied] = text[:, :copied]
        part[slots, :grown] = model[slots, :grown]
    tokens, parents, depths = padded
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=drafted.widths)


def _parts_of(draft: DraftBatch) -> tuple[Ints, Ints, Ints]:
    return draft.tokens, draft.parents, draft.depths


class HybridDrafter(Drafter):
    """Copies from each sequence's own text where a long enough end of it occurred before, else lets the model draft.

    The model drafts for the whole batch if any sequence needs it, else not at all; it then reads more the next time.
    Policies without a text part use the model alone.

    Source: Hu et al. 2024, SAM decoding, arXiv:2411.10666.
    """

    overlap = "model"

    def __init__(self, model: ModelDrafter) -> None:
        self.forwards = model.forwards  # of the model so far
        self._model = model
        self._texts = Texts()

    def attach(self, cache: KeyValueCache) -> None:
        """Pass the target's cache to a model that reads it."""
        self._model.attach(cache)

    def read_along(self, slot: int, tokens: Many[int], held: int) -> int:
        """Let the model read on in a text; drop the slot's former text where a new one begins."""
        if held == 0:
            self._texts.admit(slot)
        self._model.read_along(slot, tokens, held)
        self.forwards = self._model.forwards
        return len(tokens)

    def forget(self, slot: int) -> bool:
        """Drop a slot's text."""
        self.read_along(slot, (), 0)
        return True

    def rewind(self, lengths: Many[int]) -> bool:
        """Crop the model's slot i to its first lengths[i] tokens."""
        return self._model.rewind(lengths)

    def move(self, source: int, target: int) -> None:
        """Move a sequence from slot `source` to `target`."""
        self._texts.move(source, target)
        self._model.move(source, target)

    def copy_prefix(self, source: int, slot: int, most: int) -> int:
        """Copy the start of another slot's text in the model; drop the slot's former text."""
        self._texts.admit(slot)
        return self._model.copy_prefix(source, slot, most)

    def swap_prefixes(self, one: int, other: int) -> None:
        """Exchange two slots in the model and drop both former texts."""
        for slot in (one, other):
            self._texts.admit(slot)
        self._model.swap_prefixes(one, other)

    def uncached(self, sequences: Many[Sequence]) -> int:
        """Return the most tokens of any sequence that the model has to read when it next drafts."""
        return self._model.uncached(sequences)

    def policy_for(self, policy: TreePolicy) -> TreePolicy:
        """Return what the model drafts: an exit's policy says which states it leaves."""
        return self._model.policy_for(policy)

    def draft(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        """Return one tree per sequence: a copy of its text where there is one, else the model's."""
        if not isinstance(policy, HybridPolicy):
            return self._drafted(sequences, policy)
        copies = self._texts.draft([s.tokens for s in sequences], policy.text)
        lacking = [slot for slot, nodes in enumerate(copies.sizes.tolist()) if nodes == 1]
        if not lacking:
            return copies
        drafted = self._drafted(sequences, policy.model)
        return drafted if len(lacking) == len(sequences) else _merged(copies, drafted, lacking)

    def growth_for(self, sequences: Many[Sequence], policy: TreePolicy) -> CapturedGrowth | None:
        """Return the capture of the model's drafts for a policy or a hybrid's own model; None where there is none."""
        return self._model.growth_for(sequences, policy.model if isinstance(policy, HybridPolicy) else policy)

    def unread(self, sequences: Many[Sequence]) -> list[list[int]]:
        """Return the tokens of every sequence that the model has to read before its next draft."""
        return self._model.unread(sequences)

    def read_up(self, sequences: Many[Sequence]) -> None:
        """Let the model read every unread token but the newest of each sequence."""
        self._model.read_up(sequences)
        self.forwards = self._model.forwards

    def note_drafted(self, sequences: Many[Sequence], forwards: int) -> None:
        """Note captured work of the model."""
        self._model.note_drafted(sequences, forwards)
        self.forwards = self._model.forwards

    def left(self, sequences: Many[Sequence], draft: DraftBatch, fed: int) -> LeftStates | None:
        """Return the states of a draft's nodes where the model is an exit, else None."""
        return self._model.left(sequences, draft, fed)

    def _drafted(self, sequences: Many[Sequence], policy: TreePolicy) -> DraftBatch:
        draft = self._model.draft(sequences, self._model.policy_for(policy))
        self.forwards = self._model.forwards
        return draft
