"""Token Recycling by compiled calls on a CPU: taking committed tokens in, looking nodes up, whole drafts of lookups.

A lookup is a few comparisons, and the product behind what is taken in is small: as calls of torch's they took longer
than a small model's draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...planner.growth.draft import Children
from ...planner.kernels.arrays import Ints
from .bits import bits, is_kernels
from .forward import ForwardInput, UnlaidBeam
from .kernels.recycled import look_up, recycle, take_in, take_in_behind
from .kernels.threads import can_share, shared_by
from .lean import LeanModel
from .whole_forward import numbers_of
from .whole_head import TargetStates

if TYPE_CHECKING:
    from .recycling import SuccessorCache

PIECE = 64  # tokens whose logits over the whole vocabulary are held at once


class WholeRecycling:
    """What one target's final norm and head say, taken in and drafted from."""

    def __init__(self, target: LeanModel) -> None:
        """Take a target that `whole_recycling_of` has found to fit."""
        norm, head = target.anatomy.final_norm, target.anatomy.head.by_kernels
        assert head is not None and norm.scale is not None
        self._target, self._vocabulary, self._hidden = target, target.vocabulary, target.hidden
        self._given: tuple[Any, ...] = norm.scale, norm.eps, head.address, head.bias, head.no_residual

    def keep(self, features: Tensor, step: ForwardInput, cache: SuccessorCache) -> bool:
        """Do what `RecyclingHead.keep` does; return whether it is done."""
        if not self._takes(cache) or step.tree is not None or features.dtype != torch.bfloat16:
            return False
        cache.require(step.seen)
        states, (tokens, _, columns) = bits(features.contiguous()), numbers_of(step)
        slots = np.arange(step.first_slot, step.first_slot + len(tokens))[:, None]
        lines = (slots * cache.capacity + columns).ravel()
        told = states.reshape(tokens.size, self._hidden), np.ascontiguousarray(tokens).ravel(), lines
        given: tuple[Any, ...] = (*told, *self._written(tokens.size, cache))
        take_in(*given)
        return True

    def read(self, tokens: Ints, contexts: Ints, cache: SuccessorCache, target: TargetStates) -> bool:
        """Take in the next tokens (batch, n) of texts (batch,), from a target's states; return whether that is done."""
        if not self._takes(cache):
            return False
        cache.require(int(contexts.max()) + tokens.shape[1])
        return take_in_behind(*self._reading(tokens, contexts, cache, target))

    def load_drafting(self, cache: SuccessorCache, target: TargetStates) -> bool:
        """Load what takes in and drafts over a cache beside a target's; return whether anything does."""
        if not self._takes(cache) or target.places.shape != (self._hidden,):
            return False
        number = np.zeros((1, 1), dtype=np.int64)
        take_in_behind.load(*self._reading(number, number[0], cache, target))
        recycle.load(number, number, 0, *kept_by(cache), self._vocabulary, 1, number[None])
        return True

    def grown(self, beam: UnlaidBeam, cache: SuccessorCache) -> tuple[Ints, bool]:
        """Grow a beam of lookups behind texts that are taken in, as `FindsChildren.grown` has it."""
        batch = len(beam.tokens)
        newest = beam.tokens[np.arange(batch), beam.wanted].reshape(batch, 1)
        trees = np.empty((3, batch, beam.drafts + 1), dtype=np.int64)
        lengths = np.ascontiguousarray(beam.contexts[1]).reshape(batch, 1)
        are_numbers = recycle(newest, lengths, beam.depth, *kept_by(cache), self._vocabulary, beam.top_k, trees)
        return trees, are_numbers

    def _reading(self, tokens: Ints, contexts: Ints, cache: SuccessorCache, target: TargetStates) -> tuple[Any, ...]:
        return tokens, contexts, target.features, target.places, *self._written(tokens.size, cache)

    def _written(self, rows: int, cache: SuccessorCache) -> tuple[Any, ...]:
        """Return what is written where so many tokens are taken in, and by which weights."""
        logits = np.empty((min(rows, PIECE), self._vocabulary), dtype=np.uint16)
        return logits, *kept_by(cache), *self._given, shared_by(torch.get_num_threads())

    def _takes(self, cache: SuccessorCache) -> bool:
        return cache.tokens.is_cpu and can_share(torch.get_num_threads())


def kept_by(cache: SuccessorCache) -> tuple[Any, Any, Any]:
    """Return what a cache on the host keeps as kernels read and write it."""
    return cache.tokens.numpy(), cache.ids.numpy(), cache.log_probs.numpy()


def load_lookups(cache: SuccessorCache) -> None:
    """Have what looks nodes up ready, so that no round waits for a compiler."""
    if cache.tokens.is_cpu:
        number, chance = np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1, 1), dtype=np.float32)
        look_up.load(number, number, *kept_by(cache), 1, number[None], chance)


def greedy_children(cache: SuccessorCache, tokens: Ints, lengths: Ints, count: int, vocabulary: int) -> Children | None:
    """Return the children of nodes at temperature 0, the likeliest first; None where a device holds the cache.

    Args:
        cache: of texts in the first slots.
        tokens: (batch, width), the nodes' own.
        lengths: (batch, 1 or width), tokens of the text that each node's tree hangs off.
        count: children wanted; the vocabulary where that is smaller.
        vocabulary: tokens there are.

    Raises:
        ModelError: log-probabilities are not numbers.
    """
    if not cache.tokens.is_cpu:
        return None
    shape = *tokens.shape, min(count, vocabulary)
    below, log_probs = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
    told = np.ascontiguousarray(tokens), np.ascontiguousarray(lengths)
    require_known(look_up(*told, *kept_by(cache), vocabulary, below, log_probs))
    return Children(tokens=below, log_probs=log_probs)


def require_known(are_numbers: bool) -> None:
    """Raise ModelError where what a target held likeliest are no numbers."""
    if not are_numbers:
        raise ModelError("the target's logits are not numbers; check its weights and its dtype")


def whole_recycling_of(target: LeanModel) -> WholeRecycling | None:
    """Return what takes in and drafts by compiled calls; None where kernels do not take the target's norm and head."""
    anatomy = target.anatomy
    head, scale = anatomy.head.by_kernels, anatomy.final_norm.scale
    if head is None or scale is None or anatomy.logit_cap is not None or anatomy.gallery is not None:
        return None
    is_whole = is_kernels(anatomy.embedding) and anatomy.embedding.dtype == torch.bfloat16
    fits = scale.shape == (1, target.hidden) and head.shape == (target.vocabulary, target.hidden)
    return WholeRecycling(target) if is_whole and fits else None
