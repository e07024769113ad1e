"""Texts on the device, and what is copied out of them there: so rounds that copy may run ahead of the host, too."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch
from torch import Tensor

from ...planner.growth.draft import ROOT_TOKEN
from ...planner.policies import LookupPolicy, SuffixPolicy
from ...planner.text.image_ids import IMAGE_IDS
from ..kernels.texts import agree_with_end
from ..models.kernels.text_copies import Copying, HeldTexts, copy_behind, is_supported
from ..requests import Sequence
from ..transfer import sent
from .state import BatchState

RANKS = 1 << 32  # of places: runs are compared first


def copying_by(policy: SuffixPolicy | LookupPolicy) -> Copying:
    """Return how a policy copies, as the device does it."""
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


class TextsAhead:
    """The texts of a batch that one policy copies out of.

    Invariant: `_known[row]` is whose text the device holds there, and how long that is once all rounds that were
    launched have searched; what a sequence has beyond that the state tells, or the text is taken in anew.

    Attributes:
        nodes: of the largest tree, the root included.
    """

    def __init__(self, policy: SuffixPolicy | LookupPolicy, state: BatchState, room: int) -> None:
        """Hold no text yet.

        Args:
            policy: that copies.
            state: where the batch stands.
            room: most tokens of a text.
        """
        self.nodes = policy.length + 1
        batch, device = len(state.starts), state.numbers.device
        self._copying, self._state, self._device = copying_by(policy), state, device
        tokens = torch.zeros((batch, room), dtype=torch.int32, device=device)
        lengths = torch.zeros(batch, dtype=torch.int64, device=device)
        self._held = HeldTexts(tokens=tokens, runs=torch.zeros_like(tokens), lengths=lengths)
        self._known: list[tuple[Sequence | None, int]] = [(None, 0)] * batch
        self._has_images = [False] * batch  # which the host searches without

    def take_in(self, batch: Many[Sequence]) -> None:
        """Let the device hold the texts of sequences that are new in their slots, beside whatever else it does."""
        for row, (sequence, (known, _)) in enumerate(zip(batch, self._known, strict=True)):
            if known is not sequence:
                self._take(row, sequence)

    def begin(self, batch: Many[Sequence], fresh: Many[Many[int]] | None) -> list[Many[int]] | None:
        """Let the device hold the texts of a batch but for the newest tokens; return those that the state is to tell.

        None where a text has images: nobody copies their places, which are no tokens.

        Args:
            batch: the sequences in their slots.
            fresh: the tokens of each that a model has to read; None where none drafts.
        """
        told = list[Many[int]]()
        for row, (sequence, (known, length)) in enumerate(zip(batch, self._known, strict=True)):
            if known is sequence and self._has_images[row]:
                return None
            tokens = sequence.tokens
            new = len(tokens) - length
            unread = tokens[-max(new, 1) :] if fresh is None else fresh[row]
            if known is not sequence or not 0 <= new <= min(len(unread), self._state.fresh.shape[1]):
                self._take(row, sequence)
                unread = tokens[-1:] if fresh is None else unread
            told.append(unread)
        if any(self._has_images):
            return None
        self._known = [(sequence, len(sequence.tokens)) for sequence in batch]
        return told

    def note(self, lengths: Many[int]) -> None:
        """Take note of how long each text was when the latest round that was launched began."""
        self._known = [(sequence, length) for (sequence, _), length in zip(self._known, lengths, strict=True)]

    def drafted(self, model: Tensor | None, nodes: int) -> Tensor:
        """Return the numbers of trees of so many nodes, (batch, 3 * nodes + 1); part of the captured work.

        Args:
            model: likewise, of what a model drafted, for texts out of which nothing is copied.
            nodes: of the largest tree.
        """
        find = copy_behind if is_supported(self._device) else copied_as_tensors
        return find(self._copying, self._held, self._state.numbers, self._state.is_live, model, nodes)

    def _take(self, row: int, sequence: Sequence) -> None:
        """Take a text in as it is."""
        tokens, self._known[row] = sequence.tokens, (None, 0)
        both = np.empty((2, len(tokens)), dtype=np.int32)
        both[0] = tokens
        agree_with_end(*both)
        there = sent(both, self._device)
        self._held.tokens[row, : len(tokens)].copy_(there[0])
        self._held.runs[row, : len(tokens)].copy_(there[1])
        self._held.lengths[row].fill_(len(tokens))
        self._has_images[row] = int(both[0].max()) >= IMAGE_IDS
        self._known[row] = sequence, len(tokens)


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
