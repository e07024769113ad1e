"""A head of EAGLE-3's form on a CPU, in one call: a forward of its one layer, or a whole draft of those."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....planner.kernels.arrays import Bools, Floats32, Ints
from ....planner.kernels.beam import hang_best
from ....planner.kernels.compiled import ZERO, compiled
from .bfloat16_attention import attend
from .bfloat16_rows import LayerArrays, NormedProduct, close_layer, norm, normed_product, product
from .few_rows import Halves
from .host_drawn import DraftDraws
from .host_rows import AttentionInput, Bits
from .whole_draft import (
    NO_NUMBERS,
    NUMBERS,
    OPEN,
    SHUT,
    UNKNOWN,
    beam_room,
    laid_out,
    next_layer,
    recorded,
    told_children,
)

TOKENS, POSITIONS, COLUMNS = range(3)  # of what is told of new tokens
UNSEEN = np.uint16(0xC61C)  # -9984 in bfloat16, added to the score of the first column: no weight beside any other


class HeadWeights(NamedTuple):
    """A head but for its layer, whose `input_scale`, `head_scale` and their eps are not read."""

    embedding: Halves
    table: Halves  # (places, 2 * size), turns
    join: int  # as `product` takes weights
    join_bias: Halves
    token_scale: Bits
    token_eps: float
    feature_scale: Bits
    feature_eps: float
    heads: int
    attention_scale: float
    last: NormedProduct  # the vocabulary's
    drafted: Ints  # (draft vocabulary,), ascending ids that it can draft; empty for all


class HeadCache(NamedTuple):
    """What a head's cache holds."""

    states: Halves  # (1, slots, capacity, width)
    features: Halves  # (slots, capacity, hidden)


class HeadTokens(NamedTuple):
    """New tokens of a forward, in the slots from `slot` on.

    They take the head's features at the cache columns `parents`, or join `given`, the target's hidden states.
    """

    numbers: Ints  # (3, batch, n), tokens, positions and columns
    parents: Ints  # (batch, n)
    wanted: Ints  # (batch,), the only token of each row with logits; empty for all
    given: Halves  # (batch * n, any); (0, any) for none
    mask: Halves  # (batch or 1, n, seen), added to scores, 0 or -inf; (batch, 0, 0) where every token sees everything
    slot: int
    seen: int


class TargetStates(NamedTuple):
    """What a target's cache stores for a head."""

    features: Halves  # (slots, capacity, any)
    places: Ints  # (any,), which numbers of each feature the head joins


class DraftNodes(NamedTuple):
    """New tokens after the texts in the first slots, as in `UnlaidNodes`, and a beam's `layers` below its first."""

    tokens: Ints
    contexts: Ints  # (1 or 2, batch), cached tokens before these and, for a beam, after them
    depth: int
    visible: Bools
    wanted: Ints
    layers: int


class DraftRoom(NamedTuple):
    """What a draft writes."""

    logits: Halves  # (rows of the largest forward, draft vocabulary)
    below: Ints  # (batch, n, children)
    log_probs: Floats32  # likewise
    trees: Ints  # (3, batch, any), tokens, parents and depths with the root; (3, 0, any) for none


@compiled
def run_head(
    fed: HeadTokens, cache: HeadCache, weights: HeadWeights, layer: LayerArrays, logits: Halves, is_shared: bool
) -> bool:
    """Write the logits, keys, values and features of new tokens; False, with nothing done, for an unknown token.

    The first column is hidden, as its token has no feature before it.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, Sec. 3.1.
    """
    embedding, table, heads = weights.embedding, weights.table, weights.heads
    wanted, given, slot = fed.wanted, fed.given, fed.slot
    batch, count = fed.numbers.shape[1:]
    rows, size, width = batch * count, embedding.shape[1], cache.states.shape[3]
    tokens, columns = fed.numbers[TOKENS].reshape(rows), fed.numbers[COLUMNS].reshape(rows)
    if not are_known(tokens, wanted, count, len(embedding)):
        return False
    first = min(columns.min(), 1)
    turns = np.empty((rows, table.shape[1]), np.uint16)
    turn(fed.numbers[POSITIONS].reshape(rows), table, turns)
    bias = for_every_head(fed.mask, batch, heads // (width // table.shape[1]), first)
    if first == 0:
        bias[:, :, :1] = UNSEEN  # but by a token that sees nothing else
    else:
        open_padding(bias, columns, count, first)
    hidden, embedded = np.empty((rows, size), np.uint16), np.empty((rows, size), np.uint16)
    for row in range(rows):
        embedded[row] = embedding[tokens[row]]
    if len(given):
        product(given, weights.join, weights.join_bias, hidden[:0], hidden, is_shared)
    else:
        for row in range(rows):
            hidden[row] = cache.features[slot + row // count, fed.parents[row // count, row % count]]
    reading = np.empty((rows, 2 * size), np.uint16)
    normed = np.empty((rows, size), np.uint16)
    norm(embedded, weights.token_scale, weights.token_eps, normed, is_shared)
    reading[:, :size] = normed
    norm(hidden, weights.feature_scale, weights.feature_eps, normed, is_shared)
    reading[:, size:] = normed
    opened = np.empty((rows, heads * (table.shape[1] // 2) + width), np.uint16)
    mixed, left = np.empty((rows, heads * (table.shape[1] // 2)), np.uint16), np.empty((rows, size), np.uint16)
    product(reading, layer.weights[0, 0], layer.qkv_bias[0], opened[:0], opened, is_shared)
    seen_here = cache.states[0, slot : slot + batch]
    own = AttentionInput(turns, seen_here, bias, columns, first, fed.seen, heads, weights.attention_scale)
    attend(opened, own, mixed, is_shared)
    close_layer(mixed, hidden, left, layer, ZERO, is_shared)
    for row in range(rows):
        cache.features[slot + row // count, columns[row]] = left[row]
    take(left, wanted, count)
    last = weights.last
    normed_product(
        left[: len(logits)], last.scale, last.eps, last.weight, last.bias, last.no_residual, logits, is_shared
    )
    return True


@compiled
def open_padding(bias: Halves, columns: Ints, count: int, first: int) -> None:
    """Open the first column in sight to padding, which does not see itself: a token that sees nothing has NaN.

    `bias` (batch, lines, columns from `first` on) has each token's heads together; `columns` (batch * count,) are
    theirs.
    """
    if bias.shape[2]:
        groups = bias.shape[1] // count
        for row in range(len(bias)):
            for line in range(bias.shape[1]):
                own = columns[row * count + line // groups] - first
                if own >= bias.shape[2] or bias[row, line, own] == SHUT:
                    bias[row, line, 0] = OPEN


@compiled
def draft_by_head(
    nodes: DraftNodes, drawing: DraftDraws, target: TargetStates, cache: HeadCache, weights: HeadWeights,
    layer: LayerArrays, room: DraftRoom, is_shared: bool,
) -> int:  # fmt: skip
    """Forward new tokens after the texts in the first slots; write their likeliest children, or the trees of a beam.

    Return UNKNOWN where `run_head` does nothing, NO_NUMBERS where scores are NaN, and else NUMBERS.

    Source: Li et al. 2024, arXiv:2406.16858, Sec. 4; `planner.strategies.eagle2` does the same layer by layer.
    """
    tokens, contexts, depth, visible, wanted, layers = nodes
    logits, below, log_probs, trees = room
    drafted = weights.drafted
    batch, top_k, is_beam = len(tokens), below.shape[2], trees.shape[1] > 0
    seen_scores, seen_tokens, starts = beam_room(batch, top_k, layers if is_beam else -1)
    above, kept, number = np.zeros((batch, 1), np.float32), np.zeros((batch, 1), np.int64), ZERO  # of the root
    given = along_text(target.features, target.places, contexts[0], tokens.shape[1] if visible.shape[1] == 0 else 0)
    while True:
        before = contexts[min(number, len(contexts) - 1)]
        placed, mask = laid_out(tokens, before, depth, visible)
        parents, own = np.empty(tokens.shape, np.int64), logits[: batch * below.shape[1]]
        find_parents(visible, before, parents)
        seen = before.max() + max(visible.shape[2], tokens.shape[1])
        fed = HeadTokens(placed, parents, wanted, given, mask, ZERO, seen)
        if not run_head(fed, cache, weights, layer, own, is_shared):
            return UNKNOWN
        if not told_children(own, drawing, drafted, depth, visible, below, log_probs, is_shared):
            return NO_NUMBERS
        if len(drafted):
            for row in range(batch):
                for node in range(below.shape[1]):
                    for child in range(top_k):
                        below[row, node, child] = drafted[below[row, node, child]]
        if not is_beam:
            return NUMBERS
        above = recorded(below, log_probs, kept, above, seen_scores, seen_tokens, starts, number)
        if number == layers:
            hang_best(seen_scores, seen_tokens[0], seen_tokens[1], starts, trees)
            return NUMBERS
        kept, tokens, visible = next_layer(above, below, visible, top_k, number)
        number, depth, wanted, given = number + 1, number, wanted[:0], given[:0]
        below, log_probs = np.empty((batch, top_k, top_k), np.int64), np.empty((batch, top_k, top_k), np.float32)


@compiled
def along_text(features: Halves, places: Ints, contexts: Ints, count: int) -> Halves:
    """Return the target's cached features at the token before each of texts' next `count`, (batch * count, any).

    `places` (any,) selects numbers of each. Tokens beyond the capacity are padding, with any features.
    """
    given = np.empty((len(contexts) * count, len(places)), np.uint16)
    for row in range(len(contexts)):
        for token in range(count):
            line = features[row, min(max(contexts[row] + token - 1, 0), features.shape[1] - 1)]
            for number in range(len(places)):
                given[row * count + token, number] = line[places[number]]
    return given


@compiled
def find_parents(visible: Bools, contexts: Ints, parents: Ints) -> None:
    """Write the cache column of the last token before each drafted node that it sees; 0 for texts.

    `visible` (batch, n, nodes) opens nodes after the context (batch,), the new ones last.
    """
    before = visible.shape[2] - parents.shape[1]
    for row in range(len(visible)):
        for node in range(visible.shape[1]):
            parents[row, node] = contexts[row] - 1
            for other in range(before):
                if visible[row, node, other]:
                    parents[row, node] = contexts[row] + other
    if visible.shape[1] == 0:
        parents[:] = 0


@compiled
def are_known(tokens: Ints, wanted: Ints, count: int, vocabulary: int) -> bool:
    """Return whether all tokens (any,) are in the vocabulary, and the wanted ones of each row's `count` are there."""
    if len(wanted) and (wanted.min() < 0 or wanted.max() >= count):
        return False
    return bool(tokens.min() >= 0 and tokens.max() < vocabulary)


@compiled
def turn(positions: Ints, table: Halves, turns: Halves) -> None:
    """Write the turns of queries and keys, (rows, 2 * size), at positions (rows,); past the table its last."""
    for row in range(len(turns)):
        turns[row] = table[min(max(positions[row], 0), len(table) - 1)]


@compiled
def for_every_head(mask: Halves, batch: int, groups: int, first: int) -> Halves:
    """Return a mask from column `first` on, its lines repeated for the `groups` query heads of a key head."""
    bias = np.empty((batch, max(mask.shape[1] * groups, 1), max(mask.shape[2] - first, 0)), np.uint16)
    for row in range(batch):
        for line in range(mask.shape[1] * groups):
            bias[row, line] = mask[min(row, len(mask) - 1), line // groups, first:]
    return bias


@compiled
def take(left: Halves, wanted: Ints, count: int) -> None:
    """Move the hidden states (batch * count, hidden) of one token of each row to the front, where some are wanted."""
    for row in range(len(wanted)):  # no row is behind the one that it is read from
        left[row] = left[row * count + wanted[row]]
