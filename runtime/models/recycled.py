"""Token Recycling by compiled calls on a CPU: by torch's calls it took longer than a small model's draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...planner.kernels.arrays import Ints
from ...planner.records.draft import Children
from .bits import bits, is_kernels
from .forward import ForwardInput
from .kernels.bfloat16_rows import NormedProduct
from .kernels.recycled import SuccessorArrays, look_up, take_in
from .kernels.threads import can_share, shared_by
from .lean import LeanModel

if TYPE_CHECKING:
    from .recycling import SuccessorCache

PIECE = 64  # tokens whose logits over the whole vocabulary are held at once


class RecycledByKernels:
    """One call that takes in tokens by a target's final norm and head."""

    def __init__(self, target: LeanModel) -> None:
        """Take a target that `recycled_by_kernels` accepts."""
        norm, head = target.anatomy.final_norm, target.anatomy.head.by_kernels
        assert head is not None and norm.scale is not None
        self._target, self._vocabulary, self._hidden = target, target.vocabulary, target.hidden
        self._head = NormedProduct(norm.scale, norm.eps, head.address, head.bias, head.no_residual)

    def keep(self, features: Tensor, step: ForwardInput, cache: SuccessorCache) -> bool:
        """Do what `RecyclingHead.keep` does; return False where it cannot."""
        if not self._takes(cache) or step.tree is not None or features.dtype != torch.bfloat16:
            return False
        cache.require(step.seen)
        states, tokens, columns = bits(features.contiguous()), step.tokens.numpy(), step.columns.numpy()
        slots = np.arange(step.first_slot, step.first_slot + len(tokens))[:, None]
        lines = (slots * cache.capacity + columns).ravel()
        told = states.reshape(tokens.size, self._hidden), np.ascontiguousarray(tokens).ravel(), lines
        logits = np.empty((min(tokens.size, PIECE), self._vocabulary), dtype=np.uint16)
        take_in(*told, logits, kept_by(cache), self._head, shared_by(torch.get_num_threads()))
        return True

    def _takes(self, cache: SuccessorCache) -> bool:
        return cache.tokens.is_cpu and can_share(torch.get_num_threads())


def kept_by(cache: SuccessorCache) -> SuccessorArrays:
    """Return a host cache's arrays for kernels."""
    return SuccessorArrays(cache.tokens.numpy(), cache.ids.numpy(), cache.log_probs.numpy())


def load_lookups(cache: SuccessorCache) -> None:
    """Load the code of lookups, so that no round waits for a compiler."""
    if cache.tokens.is_cpu:
        number, chance = np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1, 1), dtype=np.float32)
        look_up.load(number, number, kept_by(cache), 1, number[None], chance)


def greedy_children(cache: SuccessorCache, tokens: Ints, lengths: Ints, count: int, vocabulary: int) -> Children | None:
    """Return the children of nodes at temperature 0, the likeliest first; None where a device holds the cache.

    `tokens` (batch, width) are the nodes'; `lengths` (batch, 1 or width) are those of the texts before their trees.
    ModelError: log-probabilities are NaN.
    """
    if not cache.tokens.is_cpu:
        return None
    shape = *tokens.shape, min(count, vocabulary)
    below, log_probs = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
    told = np.ascontiguousarray(tokens), np.ascontiguousarray(lengths)
    require_known(look_up(*told, kept_by(cache), vocabulary, below, log_probs))
    return Children(tokens=below, log_probs=log_probs)


def require_known(are_numbers: bool) -> None:
    """Raise ModelError where a target's log-probabilities are not numbers."""
    if not are_numbers:
        raise ModelError("the target's logits are not numbers; check its weights and its dtype")


def recycled_by_kernels(target: LeanModel) -> RecycledByKernels | None:
    """Return what takes tokens in by compiled calls; None where kernels do not take the target's norm and head."""
    anatomy = target.anatomy
    head, scale = anatomy.head.by_kernels, anatomy.final_norm.scale
    if head is None or scale is None or anatomy.logit_cap is not None or anatomy.gallery is not None:
        return None
    is_whole = is_kernels(anatomy.embedding) and anatomy.embedding.dtype == torch.bfloat16
    fits = scale.shape == (1, target.hidden) and head.shape == (target.vocabulary, target.hidden)
    return RecycledByKernels(target) if is_whole and fits else None
