"""Texts on the device, and what is copied out of them there: so rounds that copy may run ahead of the host, too."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN
from ...planner.records.image_ids import IMAGE_IDS
from ...planner.strategies import TreePolicy
from ...planner.strategies.lookup import LookupPolicy
from ..kernels.texts import agree_with_end
from ..models.kernels import text_copies, text_trees
from ..models.kernels.text_copies import Copying
from ..models.kernels.text_runs import HeldTexts
from ..models.kernels.text_trees import Growing
from ..requests import Sequence
from ..transfer import sent
from .state import BatchState

if TYPE_CHECKING:
    from ...planner.strategies.suffix import SuffixPolicy
    from ...planner.strategies.suffix_tree import SuffixTreePolicy

RANKS = 1 << 32  # of places: runs are compared first


def copied_ahead(policy: TreePolicy, device: torch.device) -> SuffixPolicy | SuffixTreePolicy | LookupPolicy | None:
    """Return what of a policy a device copies out of texts by itself; of trees it needs kernels, chains do without."""
    copied = policy.copied_on_gpu
    if copied is None or (copied.kind == "suffix-tree" and not text_trees.is_supported(device)):
        return None
    return cast("SuffixPolicy | SuffixTreePolicy | LookupPolicy", copied)


def drafting_by(policy: SuffixPolicy | SuffixTreePolicy | LookupPolicy) -> Copying | Growing:
    """Return how a policy copies, as the device does it."""
    if policy.kind == "suffix-tree":
        return Growing(
            nodes=policy.nodes,
            factor=policy.factor,
            offset=policy.offset,
            shortest=policy.min_match,
            least_chance=policy.least_chance,
            least_score=policy.least_score,
        )
    if isinstance(policy, LookupPolicy):
        return Copying(
            length=policy.length,
            factor=0,
            offset=policy.length,
            shortest=policy.min_ngram,
            longest=policy.max_ngram,
            is_first=policy.occurrence_in_text == "first",
            goes_on=False,
        )
    return Copying(
        length=policy.length,
        factor=policy.factor,
        offset=policy.offset,
        shortest=policy.min_match,
        longest=0,
        is_first=policy.occurrence == "first",
        goes_on=True,
    )


def load_kernels() -> None:
    """Have what the host does of texts compiled, so that no round waits for it."""
    agree_with_end(np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32))


class TextsOnDevice:
    """The texts in a decoder's slots, whoever copies out of them.

    Invariant: `_known[slot]` is whose text the device holds there, and how long that is once all rounds that were
    launched have searched; what a sequence has beyond that a round's state tells, or the text is taken in anew.
    """

    def __init__(self, slots: int, room: int, device: torch.device) -> None:
        """Hold no text yet, with room for so many tokens of each."""
        self._device = device
        tokens = torch.zeros((slots, room), dtype=torch.int32, device=device)
        lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self._held = HeldTexts(tokens=tokens, runs=torch.zeros_like(tokens), lengths=lengths)
        self._known: list[tuple[Sequence | None, int]] = [(None, 0)] * slots
        self._has_images = [False] * slots  # which the host searches without

    def of(self, batch: int) -> HeldTexts:
        """Return what is held of the first texts, a view."""
        held = self._held
        return HeldTexts(tokens=held.tokens[:batch], runs=held.runs[:batch], lengths=held.lengths[:batch])

    def take_in(self, batch: Many[Sequence]) -> None:
        """Let the device hold the texts of sequences that are new in their slots, beside whatever else it does."""
        for slot, (sequence, (known, _)) in enumerate(zip(batch, self._known, strict=False)):
            if known is not sequence:
                self._take(slot, sequence)

    def begin(self, batch: Many[Sequence], fresh: Many[Many[int]] | None, room: int) -> list[Many[int]] | None:
        """Let the device hold the texts of a batch but for the newest tokens; return those that the state is to tell.

        None where a text has images: nobody copies their places, which are no tokens.

        Args:
            batch: the sequences in their slots.
            fresh: the tokens of each that a model has to read; None where none drafts.
            room: most tokens of each that the state tells.
        """
        told = list[Many[int]]()
        for slot, (sequence, (known, length)) in enumerate(zip(batch, self._known, strict=False)):
            if known is sequence and self._has_images[slot]:
                return None
            tokens = sequence.tokens
            new = len(tokens) - length
            unread = tokens[-max(new, 1) :] if fresh is None else fresh[slot]
            if known is not sequence or not 0 <= new <= min(len(unread), room):
                self._take(slot, sequence)
                unread = tokens[-1:] if fresh is None else unread
            told.append(unread)
        if any(self._has_images[: len(batch)]):
            return None
        self._known[: len(batch)] = [(sequence, len(sequence.tokens)) for sequence in batch]
        return told

    def note(self, lengths: Many[int]) -> None:
        """Take note of how long each text was when the latest round that was launched began."""
        for slot, length in enumerate(lengths):
            self._known[slot] = self._known[slot][0], length

    def forget(self) -> None:
        """Take every text in anew before it is searched again: it is not known which rounds have been launched."""
        self._known = [(None, 0)] * len(self._known)

    def _take(self, slot: int, sequence: Sequence) -> None:
        """Take a text in as it is."""
        tokens, self._known[slot] = sequence.tokens, (None, 0)
        both = np.empty((2, len(tokens)), dtype=np.int32)
        both[0] = tokens
        agree_with_end(*both)
        there = sent(both, self._device)
        self._held.tokens[slot, : len(tokens)].copy_(there[0])
        self._held.runs[slot, : len(tokens)].copy_(there[1])
        self._held.lengths[slot].fill_(len(tokens))
        self._has_images[slot] = int(both[0].max()) >= IMAGE_IDS
        self._known[slot] = sequence, len(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How one policy copies out of the texts on a device."""

    texts: TextsOnDevice
    by: Copying | Growing

    @property
    def are_chains(self) -> bool:
        """Whether no tree of theirs branches."""
        return isinstance(self.by, Copying)

    def drafted(self, state: BatchState, model: Tensor | None, nodes: int) -> Tensor:
        """Return the numbers of trees of so many nodes, (batch, 3 * nodes + 1); part of the captured work.

        Args:
            state: where the batch stands.
            model: likewise, of what a model drafted, for texts out of which nothing is copied.
            nodes: of the largest tree.
        """
        given = self.texts.of(len(state.starts)), state.numbers, state.is_live, model, nodes
        if isinstance(self.by, Growing):
            return text_trees.grow_behind(self.by, *given)
        find = text_copies.copy_behind if text_copies.is_supported(state.numbers.device) else copied_as_tensors
        return find(self.by, *given)


def copied_as_tensors(
    copying: Copying, texts: HeldTexts, state: Tensor, is_live: Tensor, drafted: Tensor | None, nodes: int
) -> Tensor:
    """Do what `copy_behind` does, in many launches."""
    ends = (state[: len(texts.lengths)] + 1).unsqueeze(1)
    tokens, runs = _taken_in(texts, state, ends)
    for kept, found in ((texts.tokens, tokens), (texts.runs, runs), (texts.lengths, ends[:, 0])):
        torch.where(is_live, found, kept, out=kept)
    start, most = _best_of(copying, runs, ends)
    node = torch.arange(nodes, device=state.device).expand(len(ends), -1)
    is_copied = (node >= 1) & (node <= most)
    source = (start + (node - 1).clamp(min=0) % (ends - start).clamp(min=1)).clamp(max=tokens.shape[1] - 1)
    chain = (
        torch.where(is_copied, tokens.gather(1, source).long(), ROOT_TOKEN),
        torch.where(is_copied, node - 1, 0),
        torch.where(is_copied, node, 1),
    )
    roots, sizes = (ROOT_TOKEN, -1, 0), most + 1
    parts = [torch.where(node == 0, root, part) for root, part in zip(roots, chain, strict=True)]
    if drafted is not None:
        model = drafted[:, :-1].chunk(3, dim=1)
        is_given = (most == 0) & (node < model[0].shape[1])
        wide = [part.gather(1, node.clamp(max=part.shape[1] - 1)) for part in model]
        parts = [torch.where(is_given, grown, part) for part, grown in zip(parts, wide, strict=True)]
        sizes = torch.where(most == 0, drafted[:, -1:], sizes)
    return torch.cat((*parts, sizes), dim=1)


def _taken_in(texts: HeldTexts, state: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens and runs of texts with what is new, (batch, room) each; they end at `ends` (batch, 1)."""
    batch, capacity = texts.tokens.shape
    counts, told = state[batch : 2 * batch].unsqueeze(1), state[2 * batch :].view(batch, -1)
    place, held = torch.arange(capacity, device=state.device).expand(batch, -1), texts.lengths.unsqueeze(1)
    new, room = ends - held, told.shape[1]
    fresh = told.gather(1, (counts - (ends - place)).clamp(0, room - 1)).int()
    tokens = torch.where((place >= held) & (place < ends), fresh, texts.tokens)
    runs, agrees = torch.zeros_like(texts.runs), place < ends - 1
    for back in range(room):
        same = tokens.gather(1, (place - back).clamp(min=0)) == tokens.gather(1, (ends - 1 - back).clamp(min=0))
        agrees = agrees & ((same & (place >= back)) | (new <= back))
        runs += agrees & (new > back)
    before = texts.runs.gather(1, (place - new).clamp(0, capacity - 1))
    return tokens, runs + torch.where(agrees & (place >= new), before, 0)


def _best_of(copying: Copying, runs: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return where the copy behind each text's best place begins, and how many tokens it has, (batch, 1) each."""
    place = torch.arange(runs.shape[1], device=runs.device).expand_as(runs)
    match = runs.long().clamp(max=copying.longest or runs.shape[1])
    key = match * RANKS + (runs.shape[1] - place if copying.is_first else place)
    key, best = torch.where((place < ends - 1) & (runs > 0), key, -1).max(dim=1, keepdim=True)
    match, start = match.gather(1, best), best + 1
    most = (copying.factor * match + copying.offset).clamp(max=copying.length)
    if not copying.goes_on:
        most = torch.minimum(most, ends - start)
    return start, torch.where((key >= 0) & (match >= copying.shortest), most, 0)
