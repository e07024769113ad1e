"""Forwards and whole drafts of an EAGLE-3 head by one compiled call, on a CPU with bfloat16 instructions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...planner.kernels.arrays import Floats32, Ints
from .anatomy import Anatomy
from .attention import is_by_dots
from .bits import bits, bits_for_kernels, is_kernels
from .forward import ALL, NO_NODES, Draws, ForwardInput, UnlaidBeam, UnlaidNodes
from .kernel_parts import KernelParts
from .kernels.few_rows import Halves
from .kernels.threads import can_share, shared_by
from .kernels.whole_draft import NUMBERS, UNKNOWN
from .kernels.whole_head import draft_by_head, run_head
from .kv_cache import FeatureCache
from .norm import Norm
from .projection import Projection

NOT_GIVEN: Halves = np.empty((0, 0), dtype=np.uint16)  # states of the target, where a head continues its own
NO_TREES: Ints = np.empty((3, 0, 0), dtype=np.int64)  # are asked of a draft that is of one layer
NO_DRAWS = Draws(np.empty((0, 3), dtype=np.int64), np.empty((0, 3), dtype=np.float32))
Drawing = tuple[Ints, Floats32, Floats32]  # places and settings of draws, and room for them


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStates:
    """What a target's cache stores for a head."""

    features: Halves  # (slots, capacity, any)
    places: Ints  # (any,), which numbers of each feature the head joins


class WholeHead:
    """The forwards of one head."""

    def __init__(
        self,
        anatomy: Anatomy,
        parts: KernelParts,
        join: Projection,
        norms: tuple[Norm, Norm],
        embedding: Tensor,
        drafted: Ints,
    ) -> None:
        last, head, joined = anatomy.final_norm, anatomy.head.by_kernels, join.by_kernels
        assert head is not None and joined is not None and last.scale is not None
        self._width, self._joined = 2 * anatomy.kv_heads * anatomy.size, join.shape[1]
        self._drafted, self._count = drafted, head.shape[0]
        self._embedding, self._turns = bits(embedding), anatomy.sights[0].turn_bits
        own_norms = [part for norm in norms for part in (norm.scale, norm.eps)]
        read = last.scale, last.eps, head.address, head.bias, head.no_residual
        layer = anatomy.layers[0]
        self._given = joined.address, joined.bias, *own_norms, *read, anatomy.heads, layer.scale, *parts.every

    def __call__(self, step: ForwardInput, cache: FeatureCache, states: Tensor | None, parents: Ints) -> Tensor | None:
        """Return (batch, n or with `take` 1, draft vocabulary) logits of a forward; None where it is not one call.

        `states` (batch * n, any) are the target's at the tokens before; None for the head's at columns `parents`
        (batch, n).
        """
        if step.tree is not None or torch.compiler.is_compiling() or not self._takes(cache):
            return None
        batch, count = step.tokens.shape
        logits = torch.empty((batch, count if step.take is None else 1, self._count), dtype=torch.bfloat16)
        numbers, written = torch.stack((step.tokens, step.positions, step.columns)), bits(logits.flatten(0, 1))
        is_known = run_head(
            numbers.numpy(), parents, ALL if step.take is None else step.take.numpy(),
            NOT_GIVEN if states is None else bits(states.contiguous()), self._embedding, self._turns,
            bits(cache.states), bits(cache.features), mask_of(step), written,
            step.first_slot, step.seen, shared_by(torch.get_num_threads()), *self._given,
        )  # fmt: skip
        return logits if is_known else None

    def load_drafting(self, cache: FeatureCache, target: TargetStates) -> bool:
        """Load the code that drafts over a cache beside a target's; return whether there is any."""
        if not self._takes(cache) or target.places.shape != (self._joined,):
            return False
        number, numbers = np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1, 1), dtype=np.float32)
        told = number, number, 0, np.ones((1, 1, 1), dtype=np.bool_), ALL, 0
        draft_by_head.load(*self._drafting(told, None, target, cache, 1, (number[None], numbers, NO_TREES)))
        return True

    def found(
        self, nodes: UnlaidNodes, count: int, cache: FeatureCache, target: TargetStates
    ) -> tuple[Ints, Floats32, bool] | None:
        """Return the likeliest children of new tokens, as `FindsChildren.found` does; None likewise."""
        if not self._takes(cache) or min(count, len(self._embedding)) > self._count:
            return None
        told, (below, log_probs, rows) = told_of_nodes(nodes), room_behind(nodes, min(count, self._count))
        found = draft_by_head(*self._drafting(told, nodes.draws, target, cache, rows, (below, log_probs, NO_TREES)))
        return None if found == UNKNOWN else (below, log_probs, found == NUMBERS)

    def grown(self, beam: UnlaidBeam, cache: FeatureCache, target: TargetStates) -> tuple[Ints, bool] | None:
        """Return the trees of a beam, as `FindsChildren.grown` does; None likewise."""
        if not self._takes(cache) or beam.top_k > self._count:
            return None
        told, (*written, trees, rows) = told_of_beam(beam), room_for(beam)
        found = draft_by_head(*self._drafting(told, beam.draws, target, cache, rows, (*written, trees)))
        return None if found == UNKNOWN else (trees, found == NUMBERS)

    def _drafting(
        self,
        told: tuple[Any, ...],
        draws: Draws | None,
        target: TargetStates,
        cache: FeatureCache,
        rows: int,
        written: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """Return a draft's arguments, with memory for its logits: a kernel that fails would not free its own."""
        logits = np.empty((rows, self._count), dtype=np.uint16)
        beside = *drawing_by(draws, rows, self._count), target.features, target.places, self._drafted
        own = self._embedding, self._turns, bits(cache.states), bits(cache.features), logits
        return *told, *beside, *own, *written, shared_by(torch.get_num_threads()), *self._given

    def _takes(self, cache: FeatureCache) -> bool:
        """Return whether kernels take forwards over a cache, by torch's number of threads."""
        states, features = cache.states, cache.features
        is_ours = states.dtype == torch.bfloat16 and is_kernels(states) and is_kernels(features)
        is_whole = states.is_contiguous() and features.is_contiguous()
        sizes = states.shape[0], states.shape[3], features.shape[2]
        return (
            is_ours
            and is_whole
            and sizes == (1, self._width, self._embedding.shape[1])
            and can_share(torch.get_num_threads())
        )


def whole_head_of(
    anatomy: Anatomy, join: Projection, norms: tuple[Norm, Norm], embedding: Tensor, drafted: Tensor | None
) -> WholeHead | None:
    """Return the whole forwards of a head of form "eagle3"; None where kernels do not take all of it."""
    head, joined, size = anatomy.head.by_kernels, join.by_kernels, embedding.shape[1]
    layer = anatomy.layers[0]
    parts = layer.by_kernels
    if parts is None or head is None or joined is None or anatomy.sights[0].window is not None:
        return None
    table, last = anatomy.sights[0].turns, anatomy.final_norm.scale
    if not (is_kernels(embedding) and is_by_dots(anatomy, embedding) and embedding.is_contiguous()):
        return None
    ids: Ints = np.empty(0, dtype=np.int64) if drafted is None else drafted.numpy()
    has_table = is_kernels(table) and table.dtype == torch.bfloat16 and table.is_contiguous()
    scales = [last, *(norm.scale for norm in norms)]
    has_norms = all(scale is not None and scale.shape == (1, size) for scale in scales)
    queries, pairs = anatomy.heads * anatomy.size, 2 * anatomy.kv_heads * anatomy.size
    is_alike = (layer.qkv.shape, layer.output.shape) == ((queries + pairs, 2 * size), (size, queries))
    is_ascending = bool((np.diff(ids) > 0).all())  # else equals come in another order than among all tokens
    is_whole = has_table and has_norms and is_alike and is_ascending and joined.shape[0] == size
    if not is_whole or head.shape[1] != size:
        return None
    return WholeHead(anatomy, parts, join, norms, embedding, ids)


def told_of_nodes(nodes: UnlaidNodes) -> tuple[Any, ...]:
    """Return the first arguments of a drafting kernel, for one layer."""
    contexts = nodes.contexts.reshape(1, len(nodes.contexts))
    return nodes.tokens, contexts, nodes.depth, nodes.visible, nodes.wanted, 0


def room_behind(nodes: UnlaidNodes, count: int) -> tuple[Ints, Floats32, int]:
    """Return room for the children of new nodes, and the number of rows of logits."""
    batch, fed = nodes.tokens.shape
    shape = batch, 1 if len(nodes.wanted) else fed, count
    return np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32), shape[0] * shape[1]


def drawing_by(draws: Draws | None, rows: int, vocabulary: int) -> Drawing:
    """Return how tokens are drawn, and room for the scores of so many rows and for the noise of every text."""
    if draws is None:
        return *NO_DRAWS, np.empty((0, vocabulary), dtype=np.float32)
    return *draws, np.empty((rows + len(draws.places), vocabulary), dtype=np.float32)


def told_of_beam(beam: UnlaidBeam) -> tuple[Any, ...]:
    """Return the first arguments of a drafting kernel, for a whole beam."""
    return beam.tokens, beam.contexts, 0, NO_NODES, beam.wanted, beam.depth


def room_for(beam: UnlaidBeam) -> tuple[Ints, Floats32, Ints, int]:
    """Return room for a beam's first children and its trees, and the rows of logits of its largest forward."""
    batch = len(beam.tokens)
    shape = batch, 1, beam.top_k
    trees = np.empty((3, batch, beam.drafts + 1), dtype=np.int64)
    rows = batch * (beam.top_k if beam.depth else 1)
    return np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32), trees, rows


def mask_of(step: ForwardInput) -> NDArray[Any]:
    """Return a forward's bias for kernels, (batch or 1, n, seen), or (batch, 0, 0) for none."""
    bias, batch = step.bias, len(step.tokens)
    if bias is None:
        return _open_mask(batch)
    if batch > 1 and bias.stride(0) == 0:
        bias = bias[:1]  # all rows have one
    known = bits_for_kernels(bias)
    assert known is not None, "a mask lies where the model does"
    return known


@lru_cache(maxsize=256)
def _open_mask(batch: int) -> NDArray[Any]:
    return np.empty((batch, 0, 0), np.uint16)
