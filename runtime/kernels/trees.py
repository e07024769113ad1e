"""Drafted trees on the host: one compiled call instead of many calls on arrays of few numbers.

After a forward the core's caches hold weights, so host work costs by the places it touches, not by the arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...planner.kernels.arrays import Bools, Ints, Ints32
from ...planner.kernels.compiled import compiled

SOUND, EARLY, ASKEW, FOREIGN = range(4)  # what `flaw_of` finds


class TreeArrays(NamedTuple):
    """Trees of a batch, (batch, any) each, with the root's column."""

    tokens: Ints
    parents: Ints
    depths: Ints


def whole(numbers: NDArray[Any]) -> Ints:
    """Return numbers of any kind as the kernels' int64; a NaN becomes a number below all that mean something."""
    if numbers.dtype == np.int64:
        return np.ascontiguousarray(numbers)
    with np.errstate(invalid="ignore"):
        return np.ascontiguousarray(numbers, dtype=np.int64)


@compiled
def flaw_of(tokens: Ints, parents: Ints, depths: Ints, sizes: Ints, vocabulary: int) -> int:
    """Return the first flaw of trees (batch, nodes) with the root's column, of which `sizes` (batch,) are no padding.

    EARLY: not after its parent. ASKEW: not one deeper than it. FOREIGN: no padding, and outside the vocabulary.
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
    """Write token, position and cache column of every fed token into `placed` (3, batch, fed).

    `tokens` and `depths` are (batch, any) with the root's column; their first `nodes` columns are fed, the rest of
    `fed` is padding. `ends` is (2, batch): the token of each root, and committed tokens in the cache.
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
    """Write into `placed` (3, batch, n) what `place` writes, for new nodes that are no whole trees.

    `depths` (batch or 1, n) counts from the first token after the context (batch,); `written` later nodes are cached.
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
    """Write what every fed token sees: its row's context, its ancestors and itself. Padding's parent is the root.

    `parents` is (batch, any), parents before children; its first `nodes` columns are fed. `ends` is as for `place`.
    `flat` holds the mask (batch, fed, seen) and free memory after it; `opened` and `shut` are its two values.
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
    trees: TreeArrays, nodes: int, ends: Ints, placed: Ints, opened: Any, shut: Any, flat: NDArray[Any], seen: int
) -> None:
    """Do `place` and `show` for the same trees."""
    place(trees.tokens, trees.depths, nodes, ends, placed)
    show(trees.parents, nodes, ends, opened, shut, flat, placed.shape[2], seen)


@compiled
def pack(tokens: Ints, depths: Ints, parents: Ints, nodes: int, ends: Ints, fed: int, packed: Ints) -> None:
    """Write a captured forward's input (see `packed_input`) for trees as `place` and `show` take them."""
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

    `draws` (batch, at least nodes) holds the target's draw at each node; trees and `sizes` are as for `flaw_of`.
    `paths` (batch, 2, nodes + 1) is written: the length and the nodes of each path; the drawn token after each node.
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
    """Read a device's record of a round; return its first flaw, as `flaw_of` does, or write the drawn tokens.

    `record` (batch, any) holds tokens, parents and depths of `nodes` nodes, how many are real (at most `most`), and the
    draw at each node. `drawn` (batch, nodes + 1) gets the number of drawn tokens, then these.
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
    """Write what new nodes see: their row's context (batch,), and the nodes after it that `visible` opens to them.

    `visible` is (batch or 1, n, nodes after the context); `opened`, `shut` and `flat` are as for `show`.
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
    """Write the tokens (batch, width) that feed a drafted tree's next layer, and which drafted nodes each of them sees.

    A slot of a row without more nodes is fed the first child of its first slot, as some token must be there. `tokens`
    is (batch, width above, children), `visible` (batch, width above, nodes), and `sees` (batch, width, nodes + width).
    `slots` and `ranks` (batch, width) name each node's parent in the layer above (below 0: none), and which child it
    is.
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


@compiled
def move_rows(parts: NDArray[Any], moves: Ints) -> None:
    """Copy rows over others, one after the other, in each of `parts` (parts, rows, bytes) uint8.

    `moves` is (2, any): rows that are read, and rows that are written.
    """
    for part in range(len(parts)):
        for move in range(moves.shape[1]):
            read, written = parts[part, moves[0, move]], parts[part, moves[1, move]]
            for place in range(len(read)):
                written[place] = read[place]


@compiled
def agree_with_end(tokens: Ints32, runs: Ints32) -> None:
    """Write into `runs` (n,) how many tokens up to each place agree with the text's end; the last is 0.

    Source: Gusfield 1997, Algorithms on Strings, Trees and Sequences, Sec. 1.4: the Z algorithm, from the end on.
    """
    last = len(tokens) - 1
    runs[last] = 0
    left, right = last, last  # the agreement that reaches furthest to the front: places left + 1 to right
    for place in range(last - 1, -1, -1):
        run = min(runs[last - (right - place)], place - left) if place > left else 0
        while run <= place and tokens[place - run] == tokens[last - run]:
            run += 1
        runs[place] = run
        if place - run < left:
            left, right = place - run, place
