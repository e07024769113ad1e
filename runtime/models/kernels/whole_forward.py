"""A whole forward of a model of the Llama kind on a CPU, from tokens to logits, and what reads these in one call."""

from __future__ import annotations

import numpy as np

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import ZERO, compiled
from ...kernels.trees import place, show
from .bfloat16_rows import normed_product, run_layers
from .few_rows import Halves, Numbers
from .host_draws import follow
from .host_rows import Bits

TOKENS, POSITIONS, COLUMNS = range(3)  # of what is told of new tokens
OPEN, SHUT = np.uint16(0), np.uint16(0xFF80)  # 0 and -inf in bfloat16


@compiled
def run_forward(
    numbers: Ints, wanted: Ints, embedding: Halves, table: Halves, states: Halves, mask: Halves, logits: Halves,
    after: Ints, features: Halves, slot: int, seen: int, is_shared: bool,
    last_scale: Bits, last_eps: float, head: int, head_bias: Halves, no_residual: Halves,
    heads: int, attention_scale: float, inner: int, weights: Ints,
    input_scale: Bits, input_eps: float, qkv_bias: Halves, head_scale: Bits, head_eps: float,
    output_bias: Halves, scale: Bits, eps: float, gate_up_bias: Halves, down_bias: Halves,
) -> bool:  # fmt: skip
    """Write the logits of new tokens, and their keys and values.

    Returns False and does nothing where a token is unknown, or one is wanted that is not there.

    Args:
        numbers: (3, batch, n), tokens, positions and columns.
        wanted: (batch,), the only token of each row whose logits are; empty for all of them.
        embedding: (vocabulary, hidden).
        table: (places, 2 * size), how queries and keys are turned in every place; none is beyond its last line.
        states: as `run_layers` takes them.
        mask: (batch, n, seen), or (1, n, seen) for all, 0 or -inf as what is added to scores; (batch, 0, 0) where every
            token sees everything.
        logits: (rows, vocabulary), written.
        after, features, slot, seen, is_shared, heads and everything from attention_scale on: as `run_layers` takes
            them.
        last_scale: (1, hidden), of the norm before the vocabulary's product.
        last_eps: added to its mean square.
        head, head_bias, no_residual: of that product, as `product` takes them.
    """
    batch, count = numbers.shape[1:]
    size = embedding.shape[1]
    tokens, positions = numbers[TOKENS].reshape(batch * count), numbers[POSITIONS].reshape(batch * count)
    if not are_known(tokens, wanted, count, len(embedding)):
        return False
    hidden, turns = np.empty((batch * count, size), np.uint16), np.empty((batch * count, table.shape[1]), np.uint16)
    for row in range(batch * count):
        hidden[row] = embedding[tokens[row]]
    turn(positions, table, turns)
    bias = for_every_head(mask, batch, heads // (states.shape[3] // table.shape[1]), ZERO)
    left = np.empty((batch * count, size), np.uint16)
    run_layers(
        hidden, turns, states, bias, numbers[COLUMNS].reshape(batch * count), left, after, features, slot, ZERO, seen,
        ZERO, is_shared,
        heads, attention_scale, inner, weights, input_scale, input_eps, qkv_bias, head_scale, head_eps,
        output_bias, scale, eps, gate_up_bias, down_bias,
    )  # fmt: skip
    take(left, wanted, count)
    normed_product(left[: len(logits)], last_scale, last_eps, head, head_bias, no_residual, logits, is_shared)
    return True


@compiled
def are_known(tokens: Ints, wanted: Ints, count: int, vocabulary: int) -> bool:
    """Whether all tokens (any,) are of a vocabulary, and those of each row's `count` that are wanted are there."""
    if len(wanted) and (wanted.min() < 0 or wanted.max() >= count):
        return False
    return bool(tokens.min() >= 0 and tokens.max() < vocabulary)


@compiled
def turn(positions: Ints, table: Halves, turns: Halves) -> None:
    """Write how queries and keys are turned, (rows, 2 * size), in their places (rows,); see `run_forward`."""
    for row in range(len(turns)):
        turns[row] = table[min(max(positions[row], 0), len(table) - 1)]


@compiled
def for_every_head(mask: Halves, batch: int, groups: int, first: int) -> Halves:
    """Return a mask as attention takes it: its lines for each of the query heads of one key head, which see alike.

    Args:
        mask: as `run_forward` takes it.
        batch: rows.
        groups: query heads of one key head.
        first: column in sight.
    """
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


@compiled
def run_round(
    tokens: Ints, parents: Ints, depths: Ints, sizes: Ints, nodes: int, ends: Ints, fed: int,
    places: Ints, settings: Numbers,
    embedding: Halves, table: Halves, states: Halves, logits: Halves, drawn: Ints,
    after: Ints, features: Halves, seen: int, is_shared: bool,
    last_scale: Bits, last_eps: float, head: int, head_bias: Halves, no_residual: Halves,
    heads: int, attention_scale: float, inner: int, weights: Ints,
    input_scale: Bits, input_eps: float, qkv_bias: Halves, head_scale: Bits, head_eps: float,
    output_bias: Halves, scale: Bits, eps: float, gate_up_bias: Halves, down_bias: Halves,
) -> bool:  # fmt: skip
    """Verify trees behind the texts in the first slots: forward them, follow what is drawn, move what is accepted.

    Args:
        tokens, parents, depths, sizes, nodes, ends, fed: as `UnlaidTrees` has them.
        places, settings: as `Draws` has them.
        drawn: (batch, 1 + nodes), written: how many nodes are accepted of each tree, and the token behind each.
        embedding and everything behind it: as `run_forward` takes them.
    """
    batch = ends.shape[1]
    placed = np.empty((3, batch, fed), np.int64)
    is_open = fed == 1 and ends[1].min() == ends[1].max()  # to all: nobody has text or nodes that another has not
    lines, width = (0, 0) if is_open else (fed, seen)
    mask = np.empty(batch * lines * width, np.uint16)
    place(tokens, depths, nodes, ends, placed)
    if not is_open:
        show(parents, nodes, ends, OPEN, SHUT, mask, fed, seen)
    is_known = run_forward(
        placed, ends[0][:0], embedding, table, states, mask.reshape(batch, lines, width), logits,
        after, features, ZERO, seen, is_shared,
        last_scale, last_eps, head, head_bias, no_residual, heads, attention_scale, inner, weights,
        input_scale, input_eps, qkv_bias, head_scale, head_eps, output_bias, scale, eps, gate_up_bias, down_bias,
    )  # fmt: skip
    if is_known:
        paths = np.empty((batch, 2, nodes + 1), np.int64)
        follow(logits.reshape(batch, fed, logits.shape[1]), tokens, parents, sizes, places, settings, paths)
        keep(paths, ends[1], states)
        if len(after):
            keep(paths, ends[1], features.reshape(1, features.shape[0], features.shape[1], features.shape[2]))
        for row in range(batch):
            length = paths[row, 0, 0]
            drawn[row, 0], drawn[row, 1 : length + 1] = length, paths[row, 1, :length]
    return is_known


@compiled
def keep(paths: Ints, contexts: Ints, states: Halves) -> None:
    """Move what is kept of accepted nodes together, in every layer: what `KeyValueCache.keep` does.

    Args:
        paths: (batch, 2, any), as `follow` writes them.
        contexts: (batch,) committed tokens in the first slots.
        states: (layers, slots, capacity, width), written.
    """
    for layer in range(len(states)):
        for row in range(len(contexts)):
            lines = states[layer, row, contexts[row] :]
            for number in range(1, paths[row, 0, 0]):
                node = paths[row, 0, 1 + number]
                if node != number:  # it stands behind its place
                    lines[number] = lines[node]
