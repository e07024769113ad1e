"""CAST over the running sequences together: its widths, its sizes and the walk in one."""

from __future__ import annotations

import numpy as np

from ..kernels.arrays import Floats, Ints
from ..kernels.compiled import ZERO, compiled
from ..kernels.expansions import bring_near
from ..kernels.slots import NOBODY, Numbering, Rounds, counted_text, leave, refill, slots_of
from .cast_growth import last_steep
from .cast_trees import (
    GrowthParameters,
    SearchInputs,
    SearchWorkspace,
    Trees,
    add_list,
    expand,
    rank_all,
    rank_layer,
    room_for_trees,
)


@compiled
def cast_walk(setting: SearchInputs, numbering: Numbering, rounds: Rounds) -> tuple[int, int]:
    """Write every round until all texts are decoded; return how many there are, and how many counted ones are censored.

    A position is censored where a child of an unrecorded expansion could be among the best of its layer or of all.
    """
    batch = rounds.kept.shape[1]
    trees, work = room_for_trees(batch, setting.rule), _work(setting.rule)
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
def _work(rule: GrowthParameters) -> SearchWorkspace:
    most = max(rule.max_width, len(rule.verify_costs)) + 1
    return SearchWorkspace(
        np.empty(rule.max_depth * rule.max_width + 1, np.int64),
        np.empty(most, np.float64),
        np.empty(most, np.float64),
        np.empty(rule.max_depth + 1, np.float64),
    )


@compiled
def _grow(setting: SearchInputs, running: Ints, trees: Trees, work: SearchWorkspace, widths: Ints) -> int:
    """Draft all trees, write the widths of the forwards, and return how many drafted nodes are verified of each."""
    batch, expansions, rule = len(running), setting.expansions, setting.rule
    for slot in range(batch):
        root = expansions.bounds[running[slot]]
        trees.is_censored[slot] = False
        trees.nodes[slot, 0], work.sums[0] = bring_near(expansions, running[slot]), _bring_near(setting, running[slot])
        add_list(trees, rule, slot, ZERO, root, ZERO, expansions.hit_rank[root])
    layers, width, candidates = 1, 1, rule.max_width
    last_utility, ratios = 0.0, 1
    work.ratios[0] = 1.0
    widths[:] = 0
    widths[0] = 1
    while layers < rule.max_depth:
        work.sums[: rule.max_width] = 0.0
        for slot in range(batch):
            rank_layer(setting, trees, work, slot, layers - 1, width)
        width = _kept_width(rule, work, batch)
        if layers > 1:
            work.ratios[ratios] = work.utilities[width] / last_utility if last_utility > 0 else 0.0
            ratios += 1
        last_utility = work.utilities[width]
        if mean_of_last(work.ratios, ratios, rule.ratio_window) * last_utility < rule.depth * rule.draft_costs[width]:
            break
        for slot in range(batch):
            expand(setting, trees, slot, layers, width)
        widths[layers] = width
        candidates += width * rule.max_width
        layers += 1
    count = min(candidates, len(rule.verify_costs) - 1)
    work.sums[:count] = 0.0
    for slot in range(batch):
        rank_all(setting, trees, work, slot, widths[:layers], count)
    return _tree_size(rule, work, batch, count)


@compiled
def _bring_near(setting: SearchInputs, row: int) -> float:
    """Do with the survivals what `bring_near` does with the scores."""
    total = 0.0
    for node in range(setting.expansions.bounds[row], setting.expansions.bounds[row + 1]):
        total += setting.survivals[node, 0]
    return total


@compiled
def _kept_width(rule: GrowthParameters, work: SearchWorkspace, batch: int) -> int:
    _sum_up(work, batch, rule.max_width, 0.0)
    if rule.max_width == 1:
        return 1
    return max(1, last_steep(work.utilities, rule.draft_costs, rule.max_width, rule.breadth))


@compiled
def _sum_up(work: SearchWorkspace, batch: int, count: int, offset: float) -> None:
    """Write offset + u_k, where u_k is the batch mean of the summed survivals of the best k."""
    total = 0.0
    work.utilities[0] = offset
    for place in range(count):
        total += work.sums[place] / batch
        work.utilities[place + 1] = offset + total


@compiled
def _tree_size(rule: GrowthParameters, work: SearchWorkspace, batch: int, count: int) -> int:
    """Return how many drafted nodes are verified of every sequence."""
    _sum_up(work, batch, count, 1.0)
    return last_steep(work.utilities, rule.verify_costs, count, rule.rerank)


@compiled
def mean_of_last(ratios: Floats, count: int, window: int) -> float:
    """Return the mean of the last `window` of so many ratios, added up one by one."""
    total, first = 0.0, max(count - window, 0)
    for at in range(first, count):
        total += ratios[at]
    return total / (count - first)
