"""Drafted trees as a round reads them: one compiled call instead of many calls on arrays of few numbers.

Behind a forward a core's caches hold weights, so what a round does on the host costs by the places it touches, not by
the arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...planner.kernels.arrays import Bools, Ints
from ...planner.kernels.compiled import compiled

SOUND, EARLY, ASKEW, FOREIGN = range(4)  # what `flaw_of` finds


def whole(numbers: NDArray[Any]) -> Ints:
    """Return numbers of any kind as kernels take them; what is no number becomes one below all that mean something."""
    if numbers.dtype == np.int64:
        return np.ascontiguousarray(numbers)
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(numbers, dtype=np.int64)


@compiled
def flaw_of(tokens: Ints, parents: Ints, depths: Ints, sizes: Ints, vocabulary: int) -> int:
    """Return the first thing that is wrong with a batch of trees, padding included but for its tokens.

    EARLY: a node stands before its parent. ASKEW: a node is not one deeper than its parent. FOREIGN: a token is outside
    the vocabulary.

    Args:
        tokens, parents, depths: (batch, nodes), the root's column included.
        sizes: (batch,), nodes of each row that are no padding.
        vocabulary: tokens of the target.
    """
    for row in range(len(sizes)):
        for node in range(1, tokens.shape[1]):
            parent = parents[row, node]
            if parent < 0 or parent >= node:
                return EARLY
            if depths[row, node] != depths[row, parent] + 1:
                return ASKEW
        for node in range(1, sizes[row]):
            if tokens[row, node] < 0 or tokens[row, node] >= vocabulary:
                return FOREIGN
    return SOUND


@compiled
def place(tokens: Ints, depths: Ints, nodes: int, ends: Ints, placed: Ints) -> None:
    """Write the token, the position and the cache column of every token that is fed.

    Args:
        tokens, depths: (batch, any), the root's column included.
        nodes: columns of them that are fed; what is fed behind them is padding.
        ends: (2, batch), the token of each root, and committed tokens in the cache.
        placed: (3, batch, fed), written.
    """
    for row in range(ends.shape[1]):
        context = ends[1, row]
        placed[0, row, 0] = ends[0, row]
        placed[1, row, 0] = placed[2, row, 0] = context
        for node in range(1, placed.shape[2]):
            is_real = node < nodes
            placed[0, row, node] = max(tokens[row, node], 0) if is_real else 0
            placed[1, row, node] = context + (depths[row, node] if is_real else 0)
            placed[2, row, node] = context + node


@compiled
def place_layer(tokens: Ints, depths: Ints, contexts: Ints, written: int, placed: Ints) -> None:
    """Write what `place` does of new nodes that are no whole trees.

    Args:
        tokens: (batch, n).
        depths: (batch or 1, n), distance from the first token behind the context.
        contexts: (batch,) committed tokens in the cache.
        written: nodes behind the context that are in the cache already.
        placed: (3, batch, n), written.
    """
    for row in range(len(tokens)):
        own = row if len(depths) > 1 else 0
        for node in range(tokens.shape[1]):
            placed[0, row, node] = tokens[row, node]
            placed[1, row, node] = contexts[row] + depths[own, node]
            placed[2, row, node] = contexts[row] + written + node


@compiled
def show(
    parents: Ints, nodes: int, ends: Ints, opened: Any, shut: Any, flat: NDArray[Any], fed: int, seen: int
) -> None:
    """Write what every token that is fed sees: its row's context, its ancestors and itself. Padding hangs on the root.

    Args:
        parents: (batch, any), parents before children.
        nodes: columns of it that are fed.
        ends: as `place` takes them.
        opened, shut: numbers of the mask, as it holds them.
        flat: (any,), the mask (batch, fed, seen) and room behind it; written.
        fed: tokens of each row.
        seen: cache positions in sight.
    """
    for row in range(ends.shape[1]):
        context, first = ends[1, row], row * fed * seen
        for node in range(fed):
            line = flat[first + node * seen : first + (node + 1) * seen]
            line[:context] = opened
            line[context:] = shut
            if node > 0:
                above = first + (parents[row, node] if node < nodes else 0) * seen + context
                line[context : context + node] = flat[above : above + node]
            line[context + node] = opened


@compiled
def place_and_show(
    tokens: Ints,
    depths: Ints,
    parents: Ints,
    nodes: int,
    ends: Ints,
    placed: Ints,
    opened: Any,
    shut: Any,
    flat: NDArray[Any],
    seen: int,
) -> None:
    """Write what `place` and `show` do of the same trees."""
    place(tokens, depths, nodes, ends, placed)
    show(parents, nodes, ends, opened, shut, flat, placed.shape[2], seen)


@compiled
def pack(tokens: Ints, depths: Ints, parents: Ints, nodes: int, ends: Ints, fed: int, packed: Ints) -> None:
    """Write a captured forward's input (see `packed_input`): tokens, positions, columns, starts, and what nodes see.

    Args:
        tokens, depths, parents, nodes, ends: as `place` and `show` take them.
        fed: tokens of each row; padding hangs on the root.
        packed: (any,), written.
    """
    batch = ends.shape[1]
    cells = batch * fed
    first = 3 * cells + batch
    words = (len(packed) - first) // cells
    for row in range(batch):
        context = ends[1, row]
        packed[3 * cells + row] = context
        for node in range(fed):
            at, parent = row * fed + node, -1 if node == 0 else 0
            packed[at], packed[cells + at], packed[2 * cells + at] = 0, context, context + node
            if node == 0:
                packed[at] = ends[0, row]
            elif node < nodes:
                parent = parents[row, node]
                packed[at], packed[cells + at] = max(tokens[row, node], 0), context + depths[row, node]
            line, above = first + at * words, first + (row * fed + parent) * words
            for word in range(words):
                packed[line + word] = packed[above + word] if parent >= 0 else 0
            packed[line + node // 64] |= np.int64(1) << np.int64(node % 64)


@compiled
def walk(draws: Ints, tokens: Ints, parents: Ints, sizes: Ints, paths: Ints) -> None:
    """Do what `accept` does in every row's tree.

    Args:
        draws: (batch, at least nodes), the target's draw behind each node.
        tokens, parents: (batch, nodes), the root's column included, parents before children.
        sizes: (batch,), nodes of each row that are no padding.
        paths: (batch, 2, nodes + 1), written: how many nodes the path has and these; the token behind each.
    """
    for row in range(len(sizes)):
        node = length = 0
        while node >= 0:
            paths[row, 0, length + 1], paths[row, 1, length] = node, draws[row, node]
            length += 1
            child = -1
            for other in range(node + 1, sizes[row]):
                if parents[row, other] == node and tokens[row, other] == draws[row, node]:
                    child = other
            node = child
        paths[row, 0, 0] = length


@compiled
def hear(record: Ints, nodes: int, most: int, vocabulary: int, drawn: Ints) -> int:
    """Read what a device says of a round; return the first thing that is wrong with its trees, as `flaw_of` does.

    Args:
        record: (batch, any): tokens, parents and depths of so many nodes, how many are real, the draw behind each node.
        nodes: of every tree, its padding included.
        most: real nodes of a tree.
        vocabulary: tokens of the target.
        drawn: (batch, nodes + 1), written: how many tokens stand, and these, if nothing is wrong.
    """
    sizes = record[:, 3 * nodes]
    if sizes.min() < 1 or sizes.max() > min(nodes, most):
        return ASKEW
    widest = sizes.max()
    tokens, parents = record[:, :widest], record[:, nodes : nodes + widest]
    flaw = flaw_of(tokens, parents, record[:, 2 * nodes : 2 * nodes + widest], sizes, vocabulary)
    if flaw == SOUND:
        paths = np.empty((len(record), 2, nodes + 1), np.int64)
        walk(record[:, 3 * nodes + 1 :], tokens, parents, sizes, paths)
        drawn[:, 0] = paths[:, 0, 0]
        drawn[:, 1:] = paths[:, 1, :nodes]
    return flaw


@compiled
def uncover(visible: Bools, contexts: Ints, opened: Any, shut: Any, flat: NDArray[Any], seen: int) -> None:
    """Write what new nodes see: their row's context, and those nodes behind it that are visible to them.

    Args:
        visible: (batch or 1, n, nodes behind the context).
        contexts: (batch,) committed tokens in the cache.
        opened, shut: numbers of the mask, as it holds them.
        flat: (any,), the mask (batch, n, seen) and room behind it; written.
        seen: cache positions in sight.
    """
    _, count, nodes = visible.shape
    for row in range(len(contexts)):
        context, own = contexts[row], row if len(visible) > 1 else 0
        for node in range(count):
            first = (row * count + node) * seen
            line = flat[first : first + seen]
            line[:context] = opened
            line[context:] = shut
            for other in range(nodes):
                if visible[own, node, other]:
                    line[context + other] = opened


@compiled
def descend(tokens: Ints, visible: Bools, slots: Ints, ranks: Ints, fed: Ints, sees: Bools) -> None:
    """Write the tokens that a drafted tree's next layer is fed, and which drafted nodes each of them sees.

    A slot of a row that has no more nodes is fed the first child of its first slot: some token has to stand there.

    Args:
        tokens: (batch, width above, children), proposed behind the layer above.
        visible: (batch, width above, nodes so far), what that layer sees; no nodes below the root.
        slots, ranks: (batch, width), of each node's parent in the layer above, below 0 for none, and which child of it
            the node is.
        fed: (batch, width), written.
        sees: (batch, width, nodes so far + width), written.
    """
    batch, width = slots.shape
    before = sees.shape[2] - width
    for row in range(batch):
        for place in range(width):
            slot = max(slots[row, place], 0)
            fed[row, place] = tokens[row, slot, ranks[row, place]]
            for node in range(before):
                sees[row, place, node] = visible[row, slot, node]
            for node in range(width):
                sees[row, place, before + node] = node == place
