"""CAST over the running sequences together: its trees, its widths, its sizes and the walk in one.

An expanded node is a *list*: its children in descending order, of which the first `max_width` are candidates. A
candidate's key ends in (number of the list, rank), with number = layer * max_width + slot, so that of equal scores the
one recorded first comes first. All sums run in the order of `cast.grow_cast`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Bools, Floats, Ints
from .compiled import compiled
from .expansions import NOWHERE, ORDER_BITS, Expansions, bring_near, key_of
from .heap import sift_down, sift_up
from .secant import last_valid, mean_of_last
from .slots import NOBODY, Numbering, Rounds, counted_text, leave, refill, slots_of

RANK_BITS = 8  # a recording keeps fewer than 255 children of a node


class Rule(NamedTuple):
    """A CastPolicy's numbers; costs in units of one plain decoding step."""

    breadth: float
    depth: float
    rerank: float
    max_width: int
    max_depth: int
    ratio_window: int
    draft_costs: Floats  # (max_width + 1,), entry 0 is the breadth scan's origin
    verify_costs: Floats  # (max_verify_tokens,), of 1, 2, ... tokens


class Setting(NamedTuple):
    """What is drafted from, and how."""

    expansions: Expansions
    survivals: Floats  # (expansions, children), of every child
    rule: Rule


class Trees(NamedTuple):
    """What has been drafted in one round: (batch, lists) each where nothing else is said."""

    nodes: Ints  # expansion of each list
    bounds: Ints  # no child in the list has a smaller key
    hits: Ints  # which child the target takes, -1 off its path
    below: Ints  # (batch, lists * max_width), list of each candidate, -1 where it was not expanded
    best: Ints  # (batch, max_width), keys of the newest layer's best candidates; NOWHERE behind the last
    own_places: Ints  # (batch, max_depth), rank of the target's own nodes among all candidates
    own_nodes: Ints  # (batch,), how many of these there are
    is_censored: Bools  # (batch,)


class Work(NamedTuple):
    """Room for one sequence's search and for the batch's sums."""

    heap: Ints  # keys, the smallest first
    utilities: Floats
    sums: Floats
    ratios: Floats


@compiled
def cast_walk(setting: Setting, numbering: Numbering, rounds: Rounds) -> tuple[int, int]:
    """Write every round until all texts are decoded; return how many there are and how many that count are censored.

    A position is censored where a child of an expansion that was not recorded could be among the best of its layer or
    of all candidates.

    Args:
        setting: the policy's and its recording's.
        numbering: of the positions.
        rounds: with room for all; written.
    """
    batch = rounds.kept.shape[1]
    trees, work = _trees(batch, setting.rule), _work(setting.rule)
    slots = slots_of(batch)
    at = censored = entered = count = decoded = 0
    while decoded < len(numbering.starts):
        entered = refill(slots, count, numbering.starts, entered)
        drafts = _grow(setting, slots.running, trees, work, rounds.widths[at])
        context = catch_up = 0
        for slot in range(batch):
            row = slots.running[slot]
            context, catch_up = max(context, numbering.contexts[row]), max(catch_up, slots.fresh[slot])
            rounds.texts[at, slot] = counted_text(slots, slot, numbering)
            accepted = 0
            while accepted < trees.own_nodes[slot] and trees.own_places[slot, accepted] < drafts:
                accepted += 1
            slots.fresh[slot] = rounds.kept[at, slot] = min(accepted + 1, numbering.left[row])
            if rounds.texts[at, slot] != NOBODY:
                censored += trees.is_censored[slot]
            slots.running[slot] = row + slots.fresh[slot]
        rounds.contexts[at], rounds.nodes[at], rounds.catch_up[at] = context, drafts + 1, catch_up
        at += 1
        count, gone = leave(slots, numbering)
        decoded += gone
    return at, censored


@compiled
def _trees(batch: int, rule: Rule) -> Trees:
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
def _work(rule: Rule) -> Work:
    most = max(rule.max_width, len(rule.verify_costs)) + 1
    return Work(
        np.empty(rule.max_depth * rule.max_width + 1, np.int64),
        np.empty(most, np.float64),
        np.empty(most, np.float64),
        np.empty(rule.max_depth + 1, np.float64),
    )


@compiled
def _grow(setting: Setting, running: Ints, trees: Trees, work: Work, widths: Ints) -> int:
    """Draft all trees, write the widths of the forwards, and return how many drafted nodes are verified of each."""
    batch, expansions, rule = len(running), setting.expansions, setting.rule
    for slot in range(batch):
        root = expansions.bounds[running[slot]]
        trees.is_censored[slot] = False
        trees.nodes[slot, 0], work.sums[0] = bring_near(expansions, running[slot]), _bring_near(setting, running[slot])
        _add_list(trees, rule, slot, 0, root, 0, expansions.hit_rank[root])
    layers, width, candidates = 1, 1, rule.max_width
    last_utility, ratios = 0.0, 1
    work.ratios[0] = 1.0
    widths[:] = 0
    widths[0] = 1
    while layers < rule.max_depth:
        work.sums[: rule.max_width] = 0.0
        for slot in range(batch):
            _rank_layer(setting, trees, work, slot, layers - 1, width)
        width = _kept_width(rule, work, batch)
        if layers > 1:
            work.ratios[ratios] = work.utilities[width] / last_utility if last_utility > 0 else 0.0
            ratios += 1
        last_utility = work.utilities[width]
        if mean_of_last(work.ratios, ratios, rule.ratio_window) * last_utility < rule.depth * rule.draft_costs[width]:
            break
        for slot in range(batch):
            _expand(setting, trees, slot, layers, width)
        widths[layers] = width
        candidates += width * rule.max_width
        layers += 1
    count = min(candidates, len(rule.verify_costs) - 1)
    work.sums[:count] = 0.0
    for slot in range(batch):
        _rank_all(setting, trees, work, slot, widths[:layers], count)
    return _tree_size(rule, work, batch, count)


@compiled
def _bring_near(setting: Setting, row: int) -> float:
    """Do with the survivals what `bring_near` does with the scores."""
    total = 0.0
    for node in range(setting.expansions.bounds[row], setting.expansions.bounds[row + 1]):
        total += setting.survivals[node, 0]
    return total


@compiled
def _add_list(trees: Trees, rule: Rule, slot: int, number: int, node: int, above: int, hit: int) -> None:
    """Enter an expansion, whose node has the key `above`."""
    trees.nodes[slot, number], trees.hits[slot, number] = node, hit
    trees.bounds[slot, number] = (above >> ORDER_BITS << ORDER_BITS) | (number << RANK_BITS)
    for rank in range(rule.max_width):
        trees.below[slot, number * rule.max_width + rank] = -1


@compiled
def _rank_layer(setting: Setting, trees: Trees, work: Work, slot: int, layer: int, width: int) -> None:
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
    """Return number of the list and rank of a candidate."""
    return (key & (2**ORDER_BITS - 1)) >> RANK_BITS, key & (2**RANK_BITS - 1)


@compiled
def _censor(trees: Trees, slot: int, first: int, width: int, missing: int, last: int) -> None:
    """Mark the sequence if a child of a missing expansion could stand before the last of the best.

    Args:
        first, width: the lists to look at.
        missing: the expansion that stands for all that were not recorded.
        last: key of the last of the best, NOWHERE if there are too few.
    """
    for number in range(first, first + width):
        if trees.nodes[slot, number] == missing:
            trees.is_censored[slot] |= trees.bounds[slot, number] < last


@compiled
def _kept_width(rule: Rule, work: Work, batch: int) -> int:
    """Write the utilities of the layer and return how many of its nodes the next forward expands."""
    _sum_up(work, batch, rule.max_width, 0.0)
    if rule.max_width == 1:
        return 1
    return max(1, last_valid(work.utilities, rule.draft_costs, rule.max_width, rule.breadth))


@compiled
def _sum_up(work: Work, batch: int, count: int, offset: float) -> None:
    """Write offset + u_k, where u_k is the batch mean of the summed survivals of the best k."""
    total = 0.0
    work.utilities[0] = offset
    for place in range(count):
        total += work.sums[place] / batch
        work.utilities[place + 1] = offset + total


@compiled
def _expand(setting: Setting, trees: Trees, slot: int, layer: int, width: int) -> None:
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
        _add_list(trees, setting.rule, slot, layer * most + place, node, key, hit)


@compiled
def _rank_all(setting: Setting, trees: Trees, work: Work, slot: int, widths: Ints, count: int) -> None:
    """Rank one sequence's best candidates of all layers, and add their survivals to the batch's.

    A list is opened when the node above it is ranked: nothing in it can come before.
    """
    expansions, most, heap = setting.expansions, setting.rule.max_width, work.heap
    missing = len(expansions.child) - 1
    nodes, hits, below = trees.nodes[slot], trees.hits[slot], trees.below[slot]
    heap[0] = key_of(expansions, nodes[0], 0, 0)
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
            sift_up(heap, size, key_of(expansions, nodes[under], 0, under << RANK_BITS))
            size += 1
    trees.own_nodes[slot] = own
    for layer in range(len(widths)):
        _censor(trees, slot, layer * most, widths[layer], missing, key if place == count else NOWHERE)


@compiled
def _tree_size(rule: Rule, work: Work, batch: int, count: int) -> int:
    """Return how many drafted nodes are verified of every sequence."""
    _sum_up(work, batch, count, 1.0)
    return last_valid(work.utilities, rule.verify_costs, count, rule.rerank)
