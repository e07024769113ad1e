"""How drafts that are one call on a CPU lay out nodes, find children and grow beams."""

from __future__ import annotations

import numpy as np

from ....planner.kernels.arrays import Bools, Floats32, Ints
from ....planner.kernels.beam import add_up, best_first, locate
from ....planner.kernels.compiled import compiled
from ...kernels.trees import descend, place_layer, uncover
from .few_rows import Halves
from .host_drawn import DraftDraws, drawn_children
from .host_scores import children

UNKNOWN, NO_NUMBERS, NUMBERS = range(3)  # what a draft tells
OPEN, SHUT = np.uint16(0), np.uint16(0xFF80)  # 0 and -inf in bfloat16


@compiled
def told_children(
    logits: Halves, drawing: DraftDraws, ids: Ints, depth: int, visible: Bools, below: Ints, log_probs: Floats32,
    is_shared: bool,
) -> bool:  # fmt: skip
    """Write new tokens' likeliest children, drawn if `drawing` has draws; return whether all scores are numbers.

    `logits` is (batch * width, vocabulary), and `ids` as for `drawn_children`.
    """
    lines = logits.reshape(len(below), below.shape[1], logits.shape[1])
    if len(drawing.places) == 0:
        return children(lines, below, log_probs, is_shared and len(logits) > 1)
    below_text = depth + 1 if visible.shape[1] else depth
    return drawn_children(lines, drawing, ids, below_text, below, log_probs, is_shared)


@compiled
def beam_room(batch: int, top_k: int, layers: int) -> tuple[Floats32, Ints, Ints]:
    """Return room for all scores (batch, candidates) of a beam, tokens and parents (2, ...), and each layer's first."""
    room = top_k + top_k * top_k * layers if layers >= 0 else 0
    scores, numbers = np.empty((batch, room), np.float32), np.empty((2, batch, room), np.int64)
    starts = np.zeros(max(layers, 0) + 1, np.int64)
    for layer in range(1, len(starts)):
        starts[layer] = top_k + top_k * top_k * (layer - 1)
    return scores, numbers, starts


@compiled
def recorded(
    below: Ints, log_probs: Floats32, kept: Ints, above: Floats32, all_scores: Floats32, numbers: Ints, starts: Ints,
    layer: int,
) -> Floats32:  # fmt: skip
    """Write a layer's candidates among all of a beam (see `beam_room`); return their scores, (batch, candidates).

    `below` and `log_probs` are (batch, width, children) of the fed nodes in `layer`; `kept` (batch, width) is their
    place among the candidates of the layer above, whose scores are `above`.
    """
    scores = np.empty((len(below), below.shape[1] * below.shape[2]), np.float32)
    parents = np.empty(scores.shape, np.int64)
    add_up(kept, starts[layer - 1] if layer else -1, above, log_probs, scores, parents)
    record(below, scores, parents, numbers[0], all_scores, numbers[1], starts[layer])
    return scores


@compiled
def next_layer(scores: Floats32, below: Ints, visible: Bools, top_k: int, layer: int) -> tuple[Ints, Ints, Bools]:
    """Return the best candidates' places and tokens, (batch, top_k), and which drafted nodes each sees, (..., nodes).

    `scores` is (batch, candidates), `below` (batch, width, children) their tokens, `visible` (batch, width, nodes) what
    their parents see.
    """
    batch, located = len(scores), np.empty((2, len(scores), top_k), np.int64)
    kept, fed = np.empty((batch, top_k), np.int64), np.empty((batch, top_k), np.int64)
    sees = np.empty((batch, top_k, (layer + 1) * top_k), np.bool_)
    best_first(scores, kept)
    locate(kept, top_k, located)
    descend(below, visible, located[0], located[1], fed, sees)
    return kept, fed, sees


@compiled
def laid_out(tokens: Ints, contexts: Ints, depth: int, visible: Bools) -> tuple[Ints, Halves]:
    """Return an `UnlaidNodes`'s tokens for `run_head`, (3, batch, n), and their mask, (batch, 0, 0) if all is seen."""
    batch, count = tokens.shape
    is_text, depths, written = visible.shape[1] == 0, np.full((1, count), depth), visible.shape[2] - count
    if is_text:
        depths[0], written = np.arange(count), 0
    placed = np.empty((3, batch, count), np.int64)
    place_layer(tokens, depths, contexts, written, placed)
    seen = contexts.max() + max(visible.shape[2], count)
    is_open = count == 1 and contexts.min() == contexts.max() and (is_text or visible.all())
    lines, width = (0, 0) if is_open else (count, seen)
    mask = np.empty(batch * lines * width, np.uint16)
    if not is_open:
        if is_text:
            uncover_text(contexts, mask, count, seen)
        else:
            uncover(visible, contexts, OPEN, SHUT, mask, seen)
    return placed, mask.reshape(batch, lines, width)


@compiled
def record(
    below: Ints, scores: Floats32, parents: Ints, all_tokens: Ints, all_scores: Floats32, all_parents: Ints, start: int
) -> None:
    """Write a layer's candidates `below` (batch, width, children) among all (batch, any), from `start` on."""
    batch, width, children_each = below.shape
    for row in range(batch):
        for candidate in range(width * children_each):
            token = below[row, candidate // children_each, candidate % children_each]
            all_tokens[row, start + candidate] = token
            all_scores[row, start + candidate] = scores[row, candidate]
            all_parents[row, start + candidate] = parents[row, candidate]


@compiled
def uncover_text(contexts: Ints, flat: Halves, count: int, seen: int) -> None:
    """Write what the next `count` tokens of texts see, (batch * count * seen,): all that is before each, and itself."""
    for row in range(len(contexts)):
        for node in range(count):
            first, end = (row * count + node) * seen, contexts[row] + node + 1
            flat[first : first + end] = OPEN
            flat[first + end : first + seen] = SHUT
