"""Every budget and depth of TALON's trees of one gate, in one pass over the recorded positions.

A smaller budget's tree begins a larger one's: layers are equal until the budget is full, and the layer that fills it
keeps its best. So one tree of the largest budget yields for all: nodes per layer, the place of the target's own among
them, and the budgets that the trace covers. A budget here leaves out the root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.arrays import Floats32, Ints, Ints32
from ..kernels.compiled import compiled
from ..kernels.expansions import ORDER_BITS, Expansions, bring_near, key_of
from ..kernels.rounds import Results

NOT_THERE = 2**31 - 1  # stands behind every node of a layer
SLOT_SHIFT, RANKS = 8, 255


class Gate(NamedTuple):
    """A TalonPolicy's numbers."""

    log_gate: float
    top_k: int
    children: int


class Layers(NamedTuple):
    """What each layer of the tree of the largest budget does: (rows, layers) each."""

    added: Ints32  # nodes
    own_places: Ints32  # nodes of the layer before the target's own one; NOT_THERE without that
    told: Ints32  # the largest budget that no expansion missing so far can change


class Layer(NamedTuple):
    """The layer that is being filled, and the nodes above it: (budget,) each, best first."""

    best: Ints  # keys
    expanded: Ints  # expansions of the nodes above
    above: Ints  # keys of the nodes above
    scores: Floats32  # of the nodes above


@compiled
def talon_sweep(expansions: Expansions, gate: Gate, budget: int, layers: Layers) -> int:
    """Grow the tree of the largest budget at every position; return the layers of the deepest.

    `layers` is written; before, `added` are zeros and `own_places` NOT_THERE.
    """
    filled = Layer(
        np.empty(budget, np.int64),
        np.empty(budget, np.int64),
        np.empty(budget, np.int64),
        np.empty(budget, np.float32),
    )
    deepest = 0
    for row in range(len(expansions.bounds) - 1):
        layers.told[row] = budget
        if expansions.bounds[row] == expansions.bounds[row + 1]:
            continue
        filled.expanded[0] = bring_near(expansions, row)
        filled.expanded[0], filled.above[0] = expansions.bounds[row], 0
        width, own_slot, drafted = 1, 0, 0
        for depth in range(layers.added.shape[1]):
            room = budget - drafted if depth else min(budget, gate.top_k)
            least = _least(expansions, filled.expanded[:width], gate.log_gate) if depth else -np.inf
            count = _fill(expansions, filled, width, gate.children, least, room)
            if depth:
                certain = _told(filled, width, count, len(expansions.child) - 1, least)
                layers.told[row, depth:] = min(layers.told[row, depth], drafted + certain)
            drafted += count
            deepest = max(deepest, depth + 1)
            own_slot = _own_place(expansions, filled, own_slot, count)
            layers.added[row, depth] = count
            if own_slot >= 0:
                layers.own_places[row, depth] = own_slot
            if count == 0 or drafted == budget:
                break
            _expand(expansions, filled, count)
            width = count
    return deepest


@compiled
def talon_budget(layers: Layers, budget: int, results: Results) -> None:
    """Read one budget, at most the sweep's, and depth off a sweep into `results`, whose widths are zeros before."""
    for row in range(len(layers.added)):
        drafted, own, forward, width = 0, 0, 0, 1
        while forward < results.widths.shape[1] and width > 0 and drafted < budget:
            results.widths[row, forward] = width
            width = min(layers.added[row, forward], budget - drafted)
            own += layers.own_places[row, forward] < width
            drafted += width
            forward += 1
        results.accepted[row], results.sizes[row] = own, drafted + 1
        results.is_censored[row] = budget > layers.told[row, forward - 1]


@compiled
def _least(expansions: Expansions, expanded: Ints, log_gate: float) -> float:
    best = np.float32(-np.inf)
    for node in expanded:
        best = max(best, expansions.scores[node, 0])
    return np.float64(best) + log_gate


@compiled
def _fill(expansions: Expansions, filled: Layer, width: int, children: int, least: float, room: int) -> int:
    """Write the best candidates that pass, no more than there is room for; return how many they are."""
    best, count = filled.best, 0
    for slot in range(width):
        node = filled.expanded[slot]
        for rank in range(children if node != len(expansions.child) - 1 else 0):
            key = key_of(expansions, node, rank, (slot << SLOT_SHIFT) | rank)
            if np.float64(expansions.scores[node, rank]) < least or (count == room and key > best[count - 1]):
                break
            count = min(count + 1, room)
            place = count - 1
            while place > 0 and best[place - 1] > key:
                best[place] = best[place - 1]
                place -= 1
            best[place] = key
    return count


@compiled
def _told(filled: Layer, width: int, count: int, missing: int, least: float) -> int:
    """Return how many of the layer's nodes precede any child that a missing expansion may have."""
    certain = NOT_THERE
    for slot in range(width):
        if filled.expanded[slot] == missing and not np.float64(filled.scores[slot]) < least:
            place, bound = 0, (filled.above[slot] >> ORDER_BITS << ORDER_BITS) | (slot << SLOT_SHIFT)
            while place < count and filled.best[place] < bound:
                place += 1
            certain = min(certain, place)
    return certain


@compiled
def _own_place(expansions: Expansions, filled: Layer, own_slot: int, count: int) -> int:
    """Return the place of the target's own node in the layer, -1 where it is not in it."""
    if own_slot < 0:
        return -1
    own = (own_slot << SLOT_SHIFT) | expansions.hit_rank[filled.expanded[own_slot]]
    for place in range(count):
        if filled.best[place] & (2**ORDER_BITS - 1) == own:
            return place
    return -1


@compiled
def _expand(expansions: Expansions, filled: Layer, count: int) -> None:
    for place in range(count):
        order = filled.best[place] & (2**ORDER_BITS - 1)
        node, rank = filled.expanded[order >> SLOT_SHIFT], order & RANKS
        filled.above[place], filled.scores[place] = expansions.child[node, rank], expansions.scores[node, rank]
    for place in range(count):
        filled.expanded[place], filled.above[place] = filled.above[place], filled.best[place]
