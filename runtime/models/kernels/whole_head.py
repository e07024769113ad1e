"""A head of EAGLE-3's form on a CPU, in one call: a forward of its one layer, or a whole draft of those."""

from __future__ import annotations

import numpy as np

from ....planner.kernels.arrays import Bools, Floats32, Ints
from ....planner.kernels.beam import hang_best
from ....planner.kernels.compiled import ZERO, compiled
from .bfloat16_attention import attend
from .bfloat16_rows import close_layer, norm, normed_product, product
from .few_rows import Halves, Numbers
from .host_rows import Bits
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


@compiled
def run_head(
    numbers: Ints, parents: Ints, wanted: Ints, given: Halves,
    embedding: Halves, table: Halves, states: Halves, features: Halves, mask: Halves, logits: Halves,
    slot: int, seen: int, is_shared: bool,
    join: int, join_bias: Halves, token_scale: Bits, token_eps: float, feature_scale: Bits, feature_eps: float,
    last_scale: Bits, last_eps: float, head: int, head_bias: Halves, no_residual: Halves,
    heads: int, attention_scale: float, inner: int, weights: Ints,
    input_scale: Bits, input_eps: float, qkv_bias: Halves, head_scale: Bits, head_eps: float,
    output_bias: Halves, scale: Bits, eps: float, gate_up_bias: Halves, down_bias: Halves,
) -> bool:  # fmt: skip
    """Write the logits, keys, values and features of new tokens; False, with nothing done, for an unknown token.

    `numbers` (3, batch, n) are tokens, positions and columns; `wanted` (batch,) is the only token of each row with
    logits, empty for all. Tokens take the head's features at the cache columns `parents` (batch, n), or join `given`
    (batch * n, any), the target's hidden states, unless that is (0, any). `states` is (1, slots, capacity, width) and
    `features` (slots, capacity, hidden), where rows begin at `slot`. `mask` (batch or 1, n, seen) is added to scores, 0
    or -inf; (batch, 0, 0) where every token sees everything. The first column is hidden, as its token has no feature
    before it. `table` (places, 2 * size) holds turns; the rest is as for `run_layers`, but `input_scale`, `head_scale`
    and their eps are not read.

    Source: Li et al. 2025, EAGLE-3, arXiv:2503.01840, Sec. 3.1.
    """
    batch, count = numbers.shape[1:]
    rows, size = batch * count, embedding.shape[1]
    tokens, columns = numbers[TOKENS].reshape(rows), numbers[COLUMNS].reshape(rows)
    if not are_known(tokens, wanted, count, len(embedding)):
        return False
    first = min(columns.min(), 1)
    turns = np.empty((rows, table.shape[1]), np.uint16)
    turn(numbers[POSITIONS].reshape(rows), table, turns)
    bias = for_every_head(mask, batch, heads // (states.shape[3] // table.shape[1]), first)
    if first == 0:
        bias[:, :, :1] = UNSEEN  # but by a token that sees nothing else
    else:
        open_padding(bias, columns, count, first)
    hidden, embedded = np.empty((rows, size), np.uint16), np.empty((rows, size), np.uint16)
    for row in range(rows):
        embedded[row] = embedding[tokens[row]]
    if len(given):
        product(given, join, join_bias, hidden[:0], hidden, is_shared)
    else:
        for row in range(rows):
            hidden[row] = features[slot + row // count, parents[row // count, row % count]]
    reading = np.empty((rows, 2 * size), np.uint16)
    normed = np.empty((rows, size), np.uint16)
    norm(embedded, token_scale, token_eps, normed, is_shared)
    reading[:, :size] = normed
    norm(hidden, feature_scale, feature_eps, normed, is_shared)
    reading[:, size:] = normed
    opened = np.empty((rows, heads * (table.shape[1] // 2) + states.shape[3]), np.uint16)
    mixed, left = np.empty((rows, heads * (table.shape[1] // 2)), np.uint16), np.empty((rows, size), np.uint16)
    own = weights[0]
    product(reading, own[0], qkv_bias[0], opened[:0], opened, is_shared)
    seen_here = states[0, slot : slot + batch]
    attend(opened, turns, seen_here, bias, columns, mixed, first, seen, heads, attention_scale, is_shared)
    close_layer(
        mixed, hidden, left, is_shared, inner, own[1], own[2], own[3],
        output_bias[0], scale[0], eps, gate_up_bias[0], down_bias[0],
    )  # fmt: skip
    for row in range(rows):
        features[slot + row // count, columns[row]] = left[row]
    take(left, wanted, count)
    normed_product(left[: len(logits)], last_scale, last_eps, head, head_bias, no_residual, logits, is_shared)
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
    tokens: Ints, contexts: Ints, depth: int, visible: Bools, wanted: Ints, layers: int,
    places: Ints, settings: Numbers, room: Numbers,
    target_features: Halves, parts: Ints, drafted: Ints,
    embedding: Halves, table: Halves, states: Halves, features: Halves, logits: Halves,
    below: Ints, log_probs: Floats32, trees: Ints, is_shared: bool,
    join: int, join_bias: Halves, token_scale: Bits, token_eps: float, feature_scale: Bits, feature_eps: float,
    last_scale: Bits, last_eps: float, head: int, head_bias: Halves, no_residual: Halves,
    heads: int, attention_scale: float, inner: int, weights: Ints,
    input_scale: Bits, input_eps: float, qkv_bias: Halves, head_scale: Bits, head_eps: float,
    output_bias: Halves, scale: Bits, eps: float, gate_up_bias: Halves, down_bias: Halves,
) -> int:  # fmt: skip
    """Forward new tokens after the texts in the first slots; write their likeliest children, or the trees of a beam.

    Return UNKNOWN where `run_head` does nothing, NO_NUMBERS where scores are NaN, and else NUMBERS. `tokens`, `depth`,
    `visible` and `wanted` are as in `UnlaidNodes`; `contexts` (1 or 2, batch) counts cached tokens before these and,
    for a beam of `layers` below its first, after them. `places` and `settings` are as in `Draws`, empty for the best
    tokens. The head joins the numbers `parts` (any,) of the target's cached features (slots, capacity, any). `drafted`
    (draft vocabulary,) holds ascending ids that it can draft; empty for all. `trees` (3, batch, any) are tokens,
    parents and depths with the root; (3, 0, any) for none. `logits` (rows of the largest forward, draft vocabulary) is
    overwritten.

    Source: Li et al. 2024, arXiv:2406.16858, Sec. 4; `planner.strategies.eagle2` does the same layer by layer.
    """
    batch, top_k, is_beam = len(tokens), below.shape[2], trees.shape[1] > 0
    seen_scores, seen_tokens, starts = beam_room(batch, top_k, layers if is_beam else -1)
    above, kept, layer = np.zeros((batch, 1), np.float32), np.zeros((batch, 1), np.int64), ZERO  # of the root
    given = along_text(target_features, parts, contexts[0], tokens.shape[1] if visible.shape[1] == 0 else 0)
    while True:
        before = contexts[min(layer, len(contexts) - 1)]
        placed, mask = laid_out(tokens, before, depth, visible)
        parents, own = np.empty(tokens.shape, np.int64), logits[: batch * below.shape[1]]
        find_parents(visible, before, parents)
        is_known = run_head(
            placed, parents, wanted, given, embedding, table, states, features, mask, own,
            ZERO, before.max() + max(visible.shape[2], tokens.shape[1]), is_shared,
            join, join_bias, token_scale, token_eps, feature_scale, feature_eps,
            last_scale, last_eps, head, head_bias, no_residual, heads, attention_scale, inner, weights,
            input_scale, input_eps, qkv_bias, head_scale, head_eps, output_bias, scale, eps, gate_up_bias, down_bias,
        )  # fmt: skip
        if not is_known:
            return UNKNOWN
        if not told_children(own, places, settings, depth, visible, drafted, room, below, log_probs, is_shared):
            return NO_NUMBERS
        if len(drafted):
            for row in range(batch):
                for node in range(below.shape[1]):
                    for child in range(top_k):
                        below[row, node, child] = drafted[below[row, node, child]]
        if not is_beam:
            return NUMBERS
        above = recorded(below, log_probs, kept, above, seen_scores, seen_tokens, starts, layer)
        if layer == layers:
            hang_best(seen_scores, seen_tokens[0], seen_tokens[1], starts, trees)
            return NUMBERS
        kept, tokens, visible = next_layer(above, below, visible, top_k, layer)
        layer, depth, wanted, given = layer + 1, layer, wanted[:0], given[:0]
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
