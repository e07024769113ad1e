"""What passes between a drafter on a device and the code that grows trees there.

The host knows all shapes before anything is computed; what depends on scores is a mask. So a whole tree is drafted
without a read from the device, and read once, by `DeviceDraft.host`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ...planner.records.draft import ROOT_TOKEN, DraftBatch, Ints, Scores
from ..batch.transfer import fetched
from ..models.bits import bits_for_kernels
from ..models.forward import Draws
from ..models.kernels.children import best_children
from ..models.kernels.host_drawn import drawn_children
from ..models.kernels.host_scores import children
from ..models.kernels.threads import shared_by

NO_IDS: Ints = np.empty(0, dtype=np.int64)  # tokens are counted from 0 on


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChildren:
    """The most likely next tokens of every node of one layer, (batch, width, children).

    `tokens` are int64; `log_probs` float32, conditional, descending, at most 0.
    """

    tokens: Tensor
    log_probs: Tensor


def children_of(scores: Tensor, count: int) -> DeviceChildren:
    """Return the `count` most likely next tokens behind every node, most likely first; at most the vocabulary.

    `scores` (batch, width, vocabulary) are logits of the distribution to sample from; -inf for tokens that are never
    drawn.
    """
    known = bits_for_kernels(scores)
    if known is not None:
        here, log_probs_here, _ = children_here(known, count)
        return DeviceChildren(tokens=torch.from_numpy(here), log_probs=torch.from_numpy(log_probs_here))
    wide = scores.float()
    if count == 1 and wide.device.type != "cpu":  # there the best alone costs far less than a sorted one
        best, tokens = wide.max(dim=-1, keepdim=True)
        log_probs = best - wide.logsumexp(dim=-1, keepdim=True)
    else:
        log_probs, tokens = torch.log_softmax(wide, dim=-1).topk(min(count, wide.shape[-1]), dim=-1)
    return DeviceChildren(tokens=tokens, log_probs=log_probs)


def children_here(scores: NDArray[Any], count: int) -> tuple[Ints, Scores, bool]:
    """Return tokens and log-probabilities of `children_of`, and whether these are numbers; see `bits_for_kernels`."""
    shape = *scores.shape[:2], min(count, scores.shape[-1])
    tokens, log_probs = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
    is_shared = shape[0] * shape[1] > 1 and shared_by(torch.get_num_threads())
    are_numbers = children(scores, tokens, log_probs, is_shared)
    return tokens, log_probs, are_numbers


def drawn_children_here(scores: NDArray[Any], draws: Draws, depth: int, count: int) -> tuple[Ints, Scores, bool]:
    """Return what `children_here` returns for `draft_scores`, which have the noise of the target's own draws."""
    batch, width, vocabulary = scores.shape
    shape = batch, width, min(count, vocabulary)
    tokens, log_probs = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
    room = np.empty((batch * (1 + width), vocabulary), dtype=np.float32)
    is_shared = shared_by(torch.get_num_threads())
    are_numbers = drawn_children(scores, *draws, depth, NO_IDS, room, tokens, log_probs, is_shared)
    return tokens, log_probs, are_numbers


def children_by_kernels(scores: Tensor, count: int) -> DeviceChildren:
    """Return what `children_of` returns, by supported GPU kernels; equal ones in the vocabulary's order."""
    tokens, log_probs = best_children(scores.flatten(0, 1), count)
    shape = *scores.shape[:2], -1
    return DeviceChildren(tokens=tokens.view(shape), log_probs=log_probs.view(shape))


def only_children_of(scores: Tensor) -> DeviceChildren:
    """Return the most likely next token behind every node, with its score in place of its log-probability.

    A NaN score is the best of its row, as its log-probability would be NaN.
    """
    best, tokens = scores.max(dim=-1, keepdim=True)
    return DeviceChildren(tokens=tokens, log_probs=best)


class DeviceScorer(Protocol):
    """A drafter of one round: first the root's children, then layer by layer."""

    device: torch.device

    def root(self, children: int) -> DeviceChildren:
        """Return the best children of the committed text, width 1."""

    def expand(self, parents: Tensor, ranks: Tensor, children: int) -> DeviceChildren:
        """Return the best children of the next layer's nodes.

        `parents` (batch, width) are slots of the previous layer, -1 where there is no node: such a slot is fed too, and
        its answer is meaningless. `ranks` (batch, width) say which child of that slot a node is, 0 without one.
        """

    def none_open(self, is_open: Tensor) -> bool:
        """Return whether it is known already that nothing is drafted any more.

        False is always right: excess drafts reach no tree. True only if `is_open` had no True in any call of the round.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDraft:
    """One drafted tree per sequence, as in `DraftBatch`, padded to what the policy may need.

    `tokens`, `parents` and `depths` are (batch, nodes): -1, -1 and 0 at the root, -1, 0 and 1 for padding. `sizes`
    (batch,) count nodes without padding, root included; `widths` nodes per sequence of every drafter forward that ran.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    sizes: Tensor
    widths: tuple[int, ...]

    def host(self) -> DraftBatch:
        """Return the draft on the host, cut to its largest tree: one transfer, which waits for the device."""
        return batch_of(fetched(self.numbers()), self.widths)

    def numbers(self) -> Tensor:
        """Return (batch, 3 * nodes + 1): tokens, parents, depths and sizes side by side."""
        return torch.cat((self.tokens, self.parents, self.depths, self.sizes.unsqueeze(1)), dim=1)


def batch_of(numbers: Ints, widths: tuple[int, ...]) -> DraftBatch:
    """Return the draft in `DeviceDraft.numbers`, cut to its largest tree."""
    sizes, room = numbers[:, -1].copy(), numbers.shape[1] // 3
    most = max(sizes.tolist())
    tokens, parents, depths = (numbers[:, first : first + most].copy() for first in (0, room, 2 * room))
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, sizes=sizes, widths=widths)


def rooted(tokens: Tensor, parents: Tensor, depths: Tensor, sizes: Tensor, widths: tuple[int, ...]) -> DeviceDraft:
    """Return the draft of nodes (batch, drafts) with the root before them; `sizes` includes it."""
    return DeviceDraft(
        tokens=F.pad(tokens, (1, 0), value=ROOT_TOKEN),
        parents=F.pad(parents, (1, 0), value=-1),
        depths=F.pad(depths, (1, 0), value=0),
        sizes=sizes,
        widths=widths,
    )
