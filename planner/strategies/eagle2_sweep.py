"""Every depth and size of EAGLE-2 trees of one width, in one pass over the recorded positions.

A node of the target's path is in a tree if fewer candidates outrank it than the tree has room for. Keys end in
(layer, slot, rank), so of equal scores the first recorded comes first. A candidate ranked behind the whole path has no
descendant before any of it, and is not followed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Bools, Counts, Ints
from ..kernels.compiled import compiled
from ..kernels.expansions import Expansions, bring_near, key_of

LAYER_SHIFT, SLOT_SHIFT, RANKS = 20, 8, 255


class Path(NamedTuple):
    """The known part of the target's path below one position: (layers + 2,) each, index = depth.

    Keys of layers not reached yet have no slot and no rank.
    """

    keys: Ints
    ranks: Ints
    outranked_by: Ints  # candidates before each node
    fresh: Ints  # candidates of the newest layer, each counted at the first node it outranks


@compiled
def eagle2_sweep(
    expansions: Expansions, top_k: int, depths: Ints, drafts: Ints, accepted: Counts, is_censored: Bools
) -> None:
    """Count the target's own nodes in the trees of every depth and size.

    A beam of depth d has layers 1 .. d + 1; `depths` and `drafts`, the drafted nodes of trees, ascend. `accepted` and
    `is_censored`, (rows, depths, sizes), start at zero and are written. Censored: a node expanded but not recorded is
    in the tree and outranks, or is, the deepest node of the target's path in it.
    """
    layers = depths[-1] + 1
    numbers = np.zeros((4, layers + 2), np.int64)
    path = Path(numbers[0], numbers[1], numbers[2], numbers[3])
    expanded, below, beam = np.empty(top_k, np.int64), np.empty(top_k, np.int64), np.empty(top_k, np.int64)
    for row in range(len(expansions.bounds) - 1):
        root = expansions.bounds[row]
        if root == expansions.bounds[row + 1]:
            continue
        live = _follow(expansions, root, top_k, layers, path)
        if live == 0:
            continue
        path.ranks[0] = bring_near(expansions, row)
        expanded[0] = root
        width, own_slot, unsure, place = 1, 0, layers + 1, 0
        for layer in range(1, layers + 1):
            if live == 0 or width == 0:
                break
            path.keys[layer] |= (own_slot << SLOT_SHIFT) | path.ranks[layer]
            kept = _rank(expansions, expanded[:width], layer, live, path, beam)
            live = _count(layer, live, beam[:kept], path, drafts[-1])
            if layer > depths[place]:
                _enter(min(layer, live), unsure, path, drafts, accepted[row, place], is_censored[row, place])
                place += 1
            width, own_slot, unsure = _expand(expansions, expanded, layer, live, path, beam[:kept], below, unsure)
            expanded[:width] = below[:width]
        for later in range(place, len(depths)):
            _enter(live, unsure, path, drafts, accepted[row, later], is_censored[row, later])


@compiled
def _follow(expansions: Expansions, root: int, top_k: int, layers: int, path: Path) -> int:
    """Write the target's own path; return how many of its nodes are recorded children that a beam may see."""
    node, length = root, 0
    while node != len(expansions.child) - 1 and length < layers:
        rank = expansions.hit_rank[node]
        if rank >= top_k:
            break
        length += 1
        path.keys[length] = key_of(expansions, node, rank, length << LAYER_SHIFT)
        path.ranks[length], path.outranked_by[length] = rank, 0
        node = expansions.child[node, rank]
    return length


@compiled
def _rank(expansions: Expansions, expanded: Ints, layer: int, live: int, path: Path, beam: Ints) -> int:
    """Write the layer's best candidates up to the path's end, and return how many they are."""
    kept, last = 0, path.keys[live]
    for slot in range(len(expanded)):
        for rank in range(len(beam)):
            key = key_of(expansions, expanded[slot], rank, (layer << LAYER_SHIFT) | (slot << SLOT_SHIFT) | rank)
            if key > last:
                break
            first = live + 1
            while first > 1 and path.keys[first - 1] > key:
                first -= 1
            path.fresh[first] += 1
            if kept < len(beam):
                kept += 1
            elif key > beam[kept - 1]:
                continue
            place = kept - 1
            while place > 0 and beam[place - 1] > key:
                beam[place] = beam[place - 1]
                place -= 1
            beam[place] = key
    return kept


@compiled
def _count(layer: int, live: int, beam: Ints, path: Path, most: int) -> int:
    """Add the layer to the counts, and return the deepest node of the path that may still be in a tree."""
    above = 0
    for node in range(1, live + 1):
        above += path.fresh[node]
        path.outranked_by[node] += above
        path.fresh[node] = 0
    path.fresh[live + 1] = 0
    if layer < live and path.keys[layer] > beam[-1]:
        live = layer  # it fell out of the beam, so what is below it was never drafted
    while live > 0 and path.outranked_by[live] >= most:
        live -= 1
    return live


@compiled
def _expand(
    expansions: Expansions, expanded: Ints, layer: int, live: int, path: Path, beam: Ints, below: Ints, unsure: int
) -> tuple[int, int, int]:
    """Write the expansions of the next layer; return their number, the path's own slot, and the first unsure node."""
    width, own_slot = 0, -1
    for key in beam:
        if key > path.keys[live]:
            break
        node = expansions.child[expanded[(key >> SLOT_SHIFT) & (2 ** (LAYER_SHIFT - SLOT_SHIFT) - 1)], key & RANKS]
        if node == len(expansions.child) - 1:
            while unsure > 1 and path.keys[min(unsure - 1, live)] >= key:
                unsure = min(unsure - 1, live)
            continue
        if key == path.keys[layer]:
            own_slot = width
        below[width] = node
        width += 1
    return width, own_slot, unsure


@compiled
def _enter(deepest: int, unsure: int, path: Path, drafts: Ints, accepted: Counts, is_censored: Bools) -> None:
    """Write what trees of every size hold of the path, of which nodes down to `deepest` are candidates."""
    node = 0
    for size in range(len(drafts)):
        while node < deepest and path.outranked_by[node + 1] < drafts[size]:
            node += 1
        accepted[size] = node
        is_censored[size] = node >= unsure
