"""Texts on the device and the search for copies in them, so that rounds that copy may run ahead of the host."""

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
from ..batch.sequence import Sequence
from ..batch.transfer import sent
from ..kernels.trees import agree_with_end
from ..models.kernels import text_copies, text_trees
from ..models.kernels.text_copies import Copying
from ..models.kernels.text_runs import HeldTexts
from ..models.kernels.text_trees import Growing
from .device_state import BatchState

if TYPE_CHECKING:
    from ...planner.strategies.suffix import SuffixPolicy
    from ...planner.strategies.suffix_tree import SuffixTreePolicy

RANKS = 1 << 32  # of places: runs are compared first


def copied_ahead(policy: TreePolicy, device: torch.device) -> SuffixPolicy | SuffixTreePolicy | LookupPolicy | None:
    """Return the part of a policy that a device copies out of texts; trees need kernels, chains do not."""
    copied = policy.copied_on_gpu
    if copied is None or (copied.kind == "suffix-tree" and not text_trees.is_supported(device)):
        return None
    return cast("SuffixPolicy | SuffixTreePolicy | LookupPolicy", copied)


def drafting_by(policy: SuffixPolicy | SuffixTreePolicy | LookupPolicy) -> Copying | Growing:
    """Return the parameters by which the device copies for a policy."""
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
    """Compile the host's part of the work on texts, so that no round waits for it."""
    agree_with_end(np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32))


class TextsOnDevice:
    """The texts in a engine's slots, shared by all policies that copy out of them.

    Invariant: `_known[slot]` is the sequence whose text the device holds, and its length once all launched rounds have
    searched. What the sequence has beyond that comes from a round's state, or the text is sent again.
    """

    def __init__(self, slots: int, room: int, device: torch.device) -> None:
        self._device = device
        tokens = torch.zeros((slots, room), dtype=torch.int32, device=device)
        lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self._held = HeldTexts(tokens=tokens, runs=torch.zeros_like(tokens), lengths=lengths)
        self._known: list[tuple[Sequence | None, int]] = [(None, 0)] * slots
        self._has_images = [False] * slots  # which the host searches without

    def of(self, batch: int) -> HeldTexts:
        """Return views of the first `batch` texts."""
        held = self._held
        return HeldTexts(tokens=held.tokens[:batch], runs=held.runs[:batch], lengths=held.lengths[:batch])

    def take_in(self, batch: Many[Sequence]) -> None:
        """Send the texts of sequences that are new in their slots, while the device does other work."""
        for slot, (sequence, (known, _)) in enumerate(zip(batch, self._known, strict=False)):
            if known is not sequence:
                self._take(slot, sequence)

    def begin(self, batch: Many[Sequence], fresh: Many[Many[int]] | None, room: int) -> list[Many[int]] | None:
        """Send what texts lack but the newest tokens; return those, at most `room` each; None for texts with images."""
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
        """Note how long each text was when the latest launched round began."""
        for slot, length in enumerate(lengths):
            self._known[slot] = self._known[slot][0], length

    def forget(self) -> None:
        """Send every text again before it is searched: it is unknown which rounds were launched."""
        self._known = [(None, 0)] * len(self._known)

    def _take(self, slot: int, sequence: Sequence) -> None:
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
        """Whether none of their trees branches."""
        return isinstance(self.by, Copying)

    def drafted(self, state: BatchState, model: Tensor | None, nodes: int) -> Tensor:
        """Return trees, (batch, 3 * nodes + 1), with `model`'s tree where a text has no copy; is captured."""
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
    """Return tokens and runs of texts with the new tokens, (batch, room) each; texts end at `ends` (batch, 1)."""
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
    place = torch.arange(runs.shape[1], device=runs.device).expand_as(runs)
    match = runs.long().clamp(max=copying.longest or runs.shape[1])
    key = match * RANKS + (runs.shape[1] - place if copying.is_first else place)
    key, best = torch.where((place < ends - 1) & (runs > 0), key, -1).max(dim=1, keepdim=True)
    match, start = match.gather(1, best), best + 1
    most = (copying.factor * match + copying.offset).clamp(max=copying.length)
    if not copying.goes_on:
        most = torch.minimum(most, ends - start)
    return start, torch.where((key >= 0) & (match >= copying.shortest), most, 0)
