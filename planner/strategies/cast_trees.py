"""The trees that CAST drafts in one round: lists of children, ranked within a layer and over all.

An expanded node is a *list*: its children in descending order, of which the first `max_width` are candidates. A
candidate's key ends in (layer * max_width + slot, rank), so of equal scores the first recorded comes first. All sums
run in the order of `cast_growth.grow_cast`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Bools, Floats, Ints
from ..kernels.compiled import ZERO, compiled
from ..kernels.expansions import NOWHERE, ORDER_BITS, Expansions, key_of
from ..kernels.heap import sift_down, sift_up

RANK_BITS = 8  # a recording keeps fewer than 255 children of a node


class GrowthParameters(NamedTuple):
    """A CastPolicy's numbers; costs in units of one plain decoding step."""

    breadth: float
    depth: float
    rerank: float
    max_width: int
    max_depth: int
    ratio_window: int
    draft_costs: Floats  # (max_width + 1,), entry 0 is the breadth scan's origin
    verify_costs: Floats  # (max_verify_tokens,), of 1, 2, ... tokens


class SearchInputs(NamedTuple):
    """The recorded expansions, their survivals, and the policy's numbers."""

    expansions: Expansions
    survivals: Floats  # (expansions, children), of every child
    rule: GrowthParameters


class Trees(NamedTuple):
    """What has been drafted in one round: (batch, lists) each unless said otherwise."""

    nodes: Ints  # expansion of each list
    bounds: Ints  # no child in the list has a smaller key
    hits: Ints  # which child the target takes, -1 off its path
    below: Ints  # (batch, lists * max_width), list of each candidate, -1 where it was not expanded
    best: Ints  # (batch, max_width), keys of the newest layer's best candidates; NOWHERE behind the last
    own_places: Ints  # (batch, max_depth), rank of the target's own nodes among all candidates
    own_nodes: Ints  # (batch,), how many of these there are
    is_censored: Bools  # (batch,)


class SearchWorkspace(NamedTuple):
    """Room for one sequence's search and for the batch's sums."""

    heap: Ints  # keys, the smallest first
    utilities: Floats
    sums: Floats
    ratios: Floats


@compiled
def room_for_trees(batch: int, rule: GrowthParameters) -> Trees:
    """Return room for the trees of so many sequences."""
    lists, width = rule.max_depth * rule.max_width, rule.max_width
    return Trees(
        np.empty((batch, lists), np.int64),
        np.empty((batch, lists), np.int64),
        np.empty((batch, lists), np.int64),
        np.empty((batch, lists * width), np.int64),
        np.empty((batch, width), np.int64),
        np.empty((batch, rule.max_depth), np.int64),
        np.empty(batch, np.int64),
        np.empty(batch, np.bool_),
    )


@compiled
def add_list(trees: Trees, rule: GrowthParameters, slot: int, number: int, node: int, above: int, hit: int) -> None:
    """Enter an expansion, whose node has the key `above`."""
    trees.nodes[slot, number], trees.hits[slot, number] = node, hit
    trees.bounds[slot, number] = (above >> ORDER_BITS << ORDER_BITS) | (number << RANK_BITS)
    for rank in range(rule.max_width):
        trees.below[slot, number * rule.max_width + rank] = -1


@compiled
def rank_layer(setting: SearchInputs, trees: Trees, work: SearchWorkspace, slot: int, layer: int, width: int) -> None:
    """Write one sequence's best candidates of its newest layer, and add their survivals to the batch's."""
    expansions, most = setting.expansions, setting.rule.max_width
    best, nodes, bounds = trees.best[slot], trees.nodes[slot], trees.bounds[slot]
    first, missing = layer * most, len(expansions.child) - 1
    best[:] = NOWHERE
    for number in range(first, first + width):
        if bounds[number] > best[most - 1]:
            break  # and so are the bounds of the lists behind this one
        for rank in range(most if nodes[number] != missing else 0):
            key = key_of(expansions, nodes[number], rank, (number << RANK_BITS) | rank)
            if key > best[most - 1]:
                break
            place = most - 1
            while place > 0 and best[place - 1] > key:
                best[place] = best[place - 1]
                place -= 1
            best[place] = key
    for place in range(most):
        if best[place] != NOWHERE:
            number, rank = _listed(best[place])
            work.sums[place] += setting.survivals[nodes[number], rank]
    _censor(trees, slot, first, width, missing, best[most - 1])


@compiled
def _listed(key: int) -> tuple[int, int]:
    return (key & (2**ORDER_BITS - 1)) >> RANK_BITS, key & (2**RANK_BITS - 1)


@compiled
def _censor(trees: Trees, slot: int, first: int, width: int, missing: int, last: int) -> None:
    """Mark the sequence if a child of a missing expansion could precede `last`, the key of the last of the best.

    The lists `first` .. `first + width` are checked; `last` is NOWHERE if there are too few.
    """
    for number in range(first, first + width):
        if trees.nodes[slot, number] == missing:
            trees.is_censored[slot] |= trees.bounds[slot, number] < last


@compiled
def expand(setting: SearchInputs, trees: Trees, slot: int, layer: int, width: int) -> None:
    """Add the lists of the layer's best candidates."""
    expansions, most = setting.expansions, setting.rule.max_width
    missing = len(expansions.child) - 1
    for place in range(width):
        key, node, hit = trees.best[slot, place], missing, -1
        if key != NOWHERE:
            number, rank = _listed(key)
            node = expansions.child[trees.nodes[slot, number], rank]
            trees.below[slot, number * most + rank] = layer * most + place
            if trees.hits[slot, number] == rank:
                hit = expansions.hit_rank[node]
        add_list(trees, setting.rule, slot, layer * most + place, node, key, hit)


@compiled
def rank_all(setting: SearchInputs, trees: Trees, work: SearchWorkspace, slot: int, widths: Ints, count: int) -> None:
    """Rank one sequence's best candidates of all layers, and add their survivals to the batch's.

    A list opens when its node is ranked: nothing in it can come before.
    """
    expansions, most, heap = setting.expansions, setting.rule.max_width, work.heap
    missing = len(expansions.child) - 1
    nodes, hits, below = trees.nodes[slot], trees.hits[slot], trees.below[slot]
    heap[0] = key_of(expansions, nodes[0], ZERO, ZERO)
    size, place, own, key = 1, 0, 0, 0
    while place < count and size > 0:
        key = heap[0]
        number, rank = _listed(key)
        work.sums[place] += setting.survivals[nodes[number], rank]
        if rank == hits[number]:
            trees.own_places[slot, own] = place
            own += 1
        place += 1
        if rank + 1 < most:
            heap[0] = key_of(expansions, nodes[number], rank + 1, (number << RANK_BITS) | (rank + 1))
        else:
            size -= 1
            heap[0] = heap[size]
        sift_down(heap, size)
        under = below[number * most + rank]
        if under >= 0 and nodes[under] != missing:
            sift_up(heap, size, key_of(expansions, nodes[under], ZERO, under << RANK_BITS))
            size += 1
    trees.own_nodes[slot] = own
    for layer in range(len(widths)):
        _censor(trees, slot, layer * most, widths[layer], missing, key if place == count else NOWHERE)
