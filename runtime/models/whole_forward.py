"""Forwards by one compiled call, from tokens to logits, on a CPU that multiplies bfloat16 itself.

Behind a forward a core's caches hold weights, and each call of torch's finds its code cold. What stood before and
behind the layers, a dozen such calls, took a fifth of a forward of one token of 14 million parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...planner.kernels.arrays import Floats32, Ints
from .anatomy import Anatomy, LayerWeights
from .attention import is_by_dots
from .bits import KNOWN, bits, bits_for_kernels, bits_kept, bits_of_new, is_kernels
from .forward import ALL, NO_NODES, Draws, ForwardInput, UnlaidBeam, UnlaidNodes, UnlaidTrees
from .joined_products import NO_FEATURES, Features, fits
from .kernel_parts import KernelParts
from .kernels.threads import can_share, shared_by
from .kernels.whole_draft import NUMBERS, UNKNOWN, draft
from .kernels.whole_forward import run_forward, run_round
from .places import LayerStates

NO_TREES: Ints = np.empty((3, 0, 0), dtype=np.int64)  # are asked of a draft that is of one layer
NO_DRAWS = Draws(np.empty((0, 3), dtype=np.int64), np.empty((0, 3), dtype=np.float32))
Drawing = tuple[Ints, Floats32, Floats32]  # places and settings of draws, and room for them


class WholeForward:
    """The forwards of one model."""

    def __init__(self, anatomy: Anatomy, layer: LayerWeights, parts: KernelParts) -> None:
        """Take what `whole_of` has found to fit."""
        head, norm = anatomy.head.by_kernels, anatomy.final_norm
        assert head is not None and norm.scale is not None
        self._layers, self._vocabulary = len(parts.weights), anatomy.vocabulary
        self._sight, self._width = anatomy.sights[0], 2 * anatomy.kv_heads * anatomy.size
        self._embedding = bits(anatomy.embedding)
        last = norm.scale, norm.eps, head.address, head.bias, head.no_residual
        self._given: tuple[Any, ...] = (*last, anatomy.heads, layer.scale, *parts.every)

    def __call__(self, step: ForwardInput, cache: LayerStates, kept: Features = NO_FEATURES) -> Tensor | None:
        """Return the logits of a forward, (batch, n, vocabulary) or (batch, 1, vocabulary); None where it is not whole.

        That is where a window closes part of the text, attention is torch's, or a token is unknown. Hidden states that
        are to be kept are written beside the tokens' keys.
        """
        states = cache.states
        if step.tree is not None or not isinstance(states, Tensor) or torch.compiler.is_compiling():
            return None
        if not self._takes(states, step.seen):
            return None
        batch, count = step.tokens.shape
        numbers, mask = numbers_of(step), mask_of(step)
        wanted = ALL if step.take is None else step.take.numpy()
        logits, written = bits_of_new((batch, count if step.take is None else 1, self._vocabulary))
        is_known = run_forward(
            numbers, wanted, self._embedding, self._sight.turn_bits, bits_kept(states), mask, written,
            *kept, step.first_slot, step.seen, shared_by(torch.get_num_threads()), *self._given,
        )  # fmt: skip
        return logits if is_known else None

    def load_verifying(self, states: Tensor) -> bool:
        """Load what verifies trees over a cache (layers, slots, capacity, width); return whether anything does."""
        if not self._takes(states, seen=0):
            return False
        number = np.zeros((1, 1), dtype=np.int64)
        trees = UnlaidTrees(
            tokens=number,
            parents=number,
            depths=number,
            sizes=number[0],
            nodes=1,
            ends=number,
            fed=1,
            seen=1,
            draws=Draws(number, np.zeros((1, 1), dtype=np.float32)),
        )
        run_round.load(*self._arguments(trees, states, number, NO_FEATURES))
        return True

    def verified(self, trees: UnlaidTrees, states: Tensor, kept: Features = NO_FEATURES) -> Ints | None:
        """Return what is drawn along trees, as `VerifiesTrees.verified` does; None likewise."""
        if not self._takes(states, trees.seen):
            return None
        drawn = np.empty((trees.ends.shape[1], 1 + trees.nodes), dtype=np.int64)
        return drawn if run_round(*self._arguments(trees, states, drawn, kept)) else None

    def _arguments(self, trees: UnlaidTrees, states: Tensor, drawn: Ints, kept: Features) -> tuple[Any, ...]:
        """Return those of a round; logits lie in memory of ours: a kernel that fails does not free its own."""
        logits = np.empty((trees.ends.shape[1] * trees.fed, self._vocabulary), dtype=np.uint16)
        told = trees.tokens, trees.parents, trees.depths, trees.sizes, trees.nodes, trees.ends, trees.fed, *trees.draws
        given = self._embedding, self._sight.turn_bits, bits_kept(states), logits, drawn, *kept
        return *told, *given, trees.seen, shared_by(torch.get_num_threads()), *self._given

    def load_finding(self, states: Tensor) -> bool:
        """Load what drafts over a cache, likewise."""
        if not self._takes(states, seen=0):
            return False
        number, numbers = np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1, 1), dtype=np.float32)
        told = number, number, 0, np.ones((1, 1, 1), dtype=np.bool_), ALL, 0
        draft.load(*self._drafting(told, None, states, 1, (number[None], numbers, NO_TREES)))
        return True

    def found(self, nodes: UnlaidNodes, count: int, states: Tensor) -> tuple[Ints, Floats32, bool] | None:
        """Return the likeliest tokens behind new ones, as `FindsChildren.found` does; None likewise."""
        if not self._takes(states, nodes.seen):
            return None
        told, (below, log_probs, rows) = told_of_nodes(nodes), room_behind(nodes, min(count, self._vocabulary))
        found = draft(*self._drafting(told, nodes.draws, states, rows, (below, log_probs, NO_TREES)))
        return None if found == UNKNOWN else (below, log_probs, found == NUMBERS)

    def grown(self, beam: UnlaidBeam, states: Tensor) -> tuple[Ints, bool] | None:
        """Return the trees of a beam, as `FindsChildren.grown` does; None likewise."""
        if not self._takes(states, beam.seen):
            return None
        told, (*written, trees, rows) = told_of_beam(beam), room_for(beam)
        found = draft(*self._drafting(told, beam.draws, states, rows, (*written, trees)))
        return None if found == UNKNOWN else (trees, found == NUMBERS)

    def _drafting(
        self, told: tuple[Any, ...], draws: Draws | None, states: Tensor, rows: int, written: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Return the arguments of a draft whose largest forward answers so many rows; see `_arguments`."""
        logits = np.empty((rows, self._vocabulary), dtype=np.uint16)
        drawing = drawing_by(draws, rows, self._vocabulary)
        given = self._embedding, self._sight.turn_bits, bits_kept(states), logits
        return *told, *drawing, *given, *written, *NO_FEATURES, shared_by(torch.get_num_threads()), *self._given

    def _takes(self, states: Tensor, seen: int) -> bool:
        """Return whether kernels take a forward that sees so many positions of a cache, by torch's number of threads.

        Of a cache that they have written to torch is asked nothing.
        """
        window = self._sight.window
        if window is not None and window < seen:
            return False
        if not can_share(torch.get_num_threads()):
            return False
        known: NDArray[Any] | None = vars(states).get(KNOWN)
        if known is None and not (is_kernels(states) and states.dtype == torch.bfloat16 and states.is_contiguous()):
            return False
        layers, *_, width = states.shape if known is None else known.shape
        return (layers, width) == (self._layers, self._width)


def told_of_nodes(nodes: UnlaidNodes) -> tuple[Any, ...]:
    """Return the first arguments of a kernel that drafts, for one layer."""
    contexts = nodes.contexts.reshape(1, len(nodes.contexts))
    return nodes.tokens, contexts, nodes.depth, nodes.visible, nodes.wanted, 0


def room_behind(nodes: UnlaidNodes, count: int) -> tuple[Ints, Floats32, int]:
    """Return room for children of new nodes, and how many rows of logits there are."""
    batch, fed = nodes.tokens.shape
    shape = batch, 1 if len(nodes.wanted) else fed, count
    return np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32), shape[0] * shape[1]


def drawing_by(draws: Draws | None, rows: int, vocabulary: int) -> Drawing:
    """Return how tokens are drawn, and room for the scores of so many rows and for the noise of every text."""
    if draws is None:
        return *NO_DRAWS, np.empty((0, vocabulary), dtype=np.float32)
    return *draws, np.empty((rows + len(draws.places), vocabulary), dtype=np.float32)


def told_of_beam(beam: UnlaidBeam) -> tuple[Any, ...]:
    """Return the first arguments of a kernel that drafts, for a whole beam."""
    return beam.tokens, beam.contexts, 0, NO_NODES, beam.wanted, beam.depth


def room_for(beam: UnlaidBeam) -> tuple[Ints, Floats32, Ints, int]:
    """Return room for a beam's first children and its trees, and how many rows of logits its largest forward has."""
    batch = len(beam.tokens)
    shape = batch, 1, beam.top_k
    trees = np.empty((3, batch, beam.drafts + 1), dtype=np.int64)
    rows = batch * (beam.top_k if beam.depth else 1)
    return np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32), trees, rows


def numbers_of(step: ForwardInput) -> Ints:
    """Return tokens, positions and columns of a forward, (3, batch, n)."""
    if step.numbers is not None:
        return step.numbers
    numbers: Ints = torch.stack((step.tokens, step.positions, step.columns)).numpy()
    return numbers


def mask_of(step: ForwardInput) -> NDArray[Any]:
    """Return a forward's bias as kernels read it, (batch or 1, n, seen), or (batch, 0, 0) for none."""
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
    """Return a mask that closes nothing; nobody writes to it."""
    return np.empty((batch, 0, 0), np.uint16)


def whole_of(anatomy: Anatomy, layers: Sequence[LayerWeights], parts: KernelParts | None) -> WholeForward | None:
    """Return the whole forwards of a model; None where kernels do not take all of it, or its layers see differently."""
    head, first = anatomy.head.by_kernels, layers[0]
    is_plain = anatomy.gallery is None and anatomy.embedding_scale is None and anatomy.logit_cap is None
    if parts is None or head is None or not is_plain or anatomy.attention_cap is not None or len(anatomy.sights) != 1:
        return None
    embedding, norm = anatomy.embedding, anatomy.final_norm.scale
    if len(embedding) != anatomy.vocabulary:
        return None
    if not (is_kernels(embedding) and is_by_dots(anatomy, embedding) and embedding.is_contiguous()):
        return None
    size, table = embedding.shape[1], anatomy.sights[0].turns
    has_table = is_kernels(table) and table.dtype == torch.bfloat16 and table.is_contiguous()
    is_whole = has_table and norm is not None and norm.shape == (1, size) and head.shape == (anatomy.vocabulary, size)
    is_alike = fits(anatomy, first) and first.output.shape[0] == size
    return WholeForward(anatomy, first, parts) if is_whole and is_alike else None
