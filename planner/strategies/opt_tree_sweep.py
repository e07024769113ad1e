"""OPT-Tree's best trees after every layer, for one number of nodes, in one pass over the recorded positions.

What is not among the best so far has no descendant among the best later, so only the best are followed. A policy's
depth then follows from the gains from layer to layer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Bools, Counts, Floats, Ints, Ints32
from ..kernels.compiled import ZERO, compiled
from ..kernels.expansions import NOWHERE, ORDER_BITS, Expansions, bring_near, key_of


class BestTrees(NamedTuple):
    """The best candidates after every layer: (rows, layers) each."""

    expected: Floats  # sum of their probabilities, best first
    accepted: Counts  # the target's own nodes among them
    drafted: Ints32  # how many they are
    is_untold: Bools  # a child of an expansion that was not recorded could be one of them, here or in a layer above


@compiled
def opt_tree_sweep(expansions: Expansions, probabilities: Floats, most: int, children: int, trees: BestTrees) -> None:
    """Rank the candidates at every position, layer after layer, into `trees`, which are zeros before.

    `probabilities` (expansions, children) are of the path to each child; `most` counts a tree's nodes without its root.
    """
    expected, accepted, drafted, is_untold = trees
    layers = expected.shape[1]
    best = np.empty(most, np.int64)  # keys, whose order counts the candidates that were among the best once
    seen = np.empty((children * (1 + layers * most), 4), np.int64)  # those: expansion, rank, layer, is it on the path
    layer_nodes = np.empty((most, 3), np.int64)
    for row in range(len(expansions.bounds) - 1):
        root = expansions.bounds[row]
        if root == expansions.bounds[row + 1]:
            continue
        seen[0, 0] = bring_near(expansions, row)
        best[:] = NOWHERE
        entered = _enter(expansions, root, expansions.hit_rank[root], ZERO, children, best, seen, ZERO)
        lost = NOWHERE
        for layer in range(layers):
            for place in range(most):
                if best[place] == NOWHERE:
                    break
                order = best[place] & (2**ORDER_BITS - 1)
                expected[row, layer] += probabilities[seen[order, 0], seen[order, 1]]
                accepted[row, layer] += seen[order, 3]
                drafted[row, layer] += 1
            is_uncertain = lost != NOWHERE and lost >> ORDER_BITS <= best[most - 1] >> ORDER_BITS
            is_untold[row, layer] = is_uncertain or (layer > 0 and is_untold[row, layer - 1])
            width = _newest(expansions, best, seen, layer, layer_nodes)
            for slot in range(width):
                node, own_rank, key = layer_nodes[slot, 0], layer_nodes[slot, 1], layer_nodes[slot, 2]
                if node == len(expansions.child) - 1:
                    lost = min(lost, key)
                else:
                    entered = _enter(expansions, node, own_rank, layer + 1, children, best, seen, entered)


@compiled
def _enter(
    expansions: Expansions, node: int, own_rank: int, layer: int, children: int, best: Ints, seen: Ints, entered: int
) -> int:
    """Enter an expansion's children among the best, and return how many candidates ever were."""
    for rank in range(children):
        key = key_of(expansions, node, rank, entered)
        place = len(best) - 1
        if key > best[place]:
            break
        while place > 0 and best[place - 1] > key:
            best[place] = best[place - 1]
            place -= 1
        best[place] = key
        seen[entered, 0], seen[entered, 1], seen[entered, 2], seen[entered, 3] = node, rank, layer, rank == own_rank
        entered += 1
    return entered


@compiled
def _newest(expansions: Expansions, best: Ints, seen: Ints, layer: int, layer_nodes: Ints) -> int:
    """Write expansion, the target's own child if there is one, and key of the best that are of a layer, best first."""
    width = 0
    for place in range(len(best)):
        order = best[place] & (2**ORDER_BITS - 1)
        if best[place] != NOWHERE and seen[order, 2] == layer:
            node = expansions.child[seen[order, 0], seen[order, 1]]
            layer_nodes[width, 0], layer_nodes[width, 2] = node, best[place]
            layer_nodes[width, 1] = expansions.hit_rank[node] if seen[order, 3] else -1
            width += 1
    return width
