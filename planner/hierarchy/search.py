"""The fastest hierarchy on the exact formula: both programmes' answers, then descent.

A descent sets one threshold at a time (on the top level together with the tree) to its best value, until none changes.
It starts from both programmes' hierarchies and their neighbours: one model more, one fewer or one exchanged. At the
best end every two thresholds are tried together and its neighbours descend, until nothing improves. Every step prices
all choices in one array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from .latency import latencies_ms
from .programmes import MAX_THRESHOLD, mean_field_stack, solved, truncated_stack
from .records import HierarchyInputs, SolvedHierarchy
from .tables import Stack, Tables

Level = tuple[int, int]  # node and threshold


def best_hierarchy(inputs: HierarchyInputs, max_threshold: int = MAX_THRESHOLD) -> SolvedHierarchy:
    """Return the fastest hierarchy found on the exact formula of HSD, and its time per token."""
    tables = Tables(inputs)
    starts = {mean_field_stack(tables, max_threshold)[0], truncated_stack(tables, max_threshold)[0], Stack()}
    best, best_ms = _lowest(_descended(tables, _with_neighbours(tables, starts), max_threshold))
    while True:
        paired = _paired(tables, best, max_threshold)
        found, found_ms = _lowest(_descended(tables, _with_neighbours(tables, [best, paired]), max_threshold))
        if not found_ms < best_ms:
            return solved(tables, best, best_ms)
        best, best_ms = found, found_ms


def neighbours(tables: Tables, stack: Stack) -> Iterator[Stack]:
    """Yield the allowed stacks with one node more, fewer or exchanged; thresholds are cut to what fits."""
    levels = list(zip(stack.nodes, stack.thresholds, strict=True))
    shorter = [levels[:place] + levels[place + 1 :] for place in range(len(levels))]
    for kept in shorter:
        yield from _fitted(tables, kept)
    others = [node for node in range(tables.nodes) if node != tables.target and node not in stack.nodes]
    for kept, node in product([levels, *shorter], others):
        yield from _fitted(tables, _with_node(tables, kept, node))


def _with_node(tables: Tables, levels: list[Level], node: int) -> list[Level]:
    """Return the levels with one more in its place: a block lowest, a model above all blocks and smaller models."""
    place = sum(1 for other, _ in levels if node <= tables.target and (other > tables.target or other < node))
    threshold = levels[max(place - 1, 0)][1] if levels else 1
    return [*levels[:place], (node, threshold), *levels[place:]]


def _fitted(tables: Tables, levels: list[Level]) -> Iterator[Stack]:
    if not levels:
        yield Stack()
        return
    nodes, thresholds = zip(*levels, strict=True)
    finishes = tables.finishes_of(nodes[-1])
    if finishes:
        stack = Stack(nodes, thresholds, finishes[0])
        limits = tables.limits_of(stack)
        if min(limits) > 0:
            yield stack._replace(thresholds=tuple(map(min, thresholds, limits)))


def _with_neighbours(tables: Tables, stacks: Iterable[Stack]) -> set[Stack]:
    return {other for stack in stacks for other in (stack, *neighbours(tables, stack))}


def _descended(tables: Tables, stacks: Iterable[Stack], max_threshold: int) -> dict[Stack, float]:
    starts = list(stacks)
    falling = dict(zip(starts, latencies_ms(tables, starts).tolist(), strict=True))
    ended: dict[Stack, float] = {}
    while falling:
        swept = falling
        for place in range(max(len(stack.nodes) for stack in falling)):
            swept = _improved(tables, swept, place, max_threshold)
        ended |= {stack: ms for stack, ms in swept.items() if stack in falling}
        falling = {stack: ms for stack, ms in swept.items() if stack not in ended}
    return ended


def _improved(tables: Tables, stacks: dict[Stack, float], place: int, max_threshold: int) -> dict[Stack, float]:
    """Return the stacks with their threshold at a place, and their finish if it is the top, set to the best."""
    choices = {stack: list(_choices(tables, stack, (place,), max_threshold)) for stack in stacks}
    flat = list({choice for several in choices.values() for choice in several})
    ms = dict(zip(flat, latencies_ms(tables, flat).tolist(), strict=True))
    improved: dict[Stack, float] = {}
    for stack, several in choices.items():
        best = min(several, key=lambda choice: ms[choice], default=stack)
        is_better = best in ms and ms[best] < stacks[stack]
        improved[best if is_better else stack] = ms[best] if is_better else stacks[stack]
    return improved


def _paired(tables: Tables, stack: Stack, max_threshold: int) -> Stack:
    """Return the best stack that differs in two thresholds (and the finish), or the stack itself."""
    pairs = combinations(range(len(stack.nodes)), 2)
    choices = [stack, *(choice for pair in pairs for choice in _choices(tables, stack, pair, max_threshold))]
    return choices[int(latencies_ms(tables, choices).argmin())]


def _choices(tables: Tables, stack: Stack, places: tuple[int, ...], max_threshold: int) -> Iterator[Stack]:
    """Yield the stack with every threshold at these ascending places, and every finish if the top is among them."""
    if places[-1] >= len(stack.nodes):
        return
    is_top = places[-1] == len(stack.nodes) - 1
    for finish in tables.finishes_of(stack.nodes[-1]) if is_top else [stack.finish]:
        limits = tables.limits_of(stack._replace(finish=finish))
        options = [range(1, min(limits[place], max_threshold) + 1) for place in places]
        for chosen in product(*options):
            thresholds = list(stack.thresholds)
            for place, threshold in zip(places, chosen, strict=True):
                thresholds[place] = threshold
            yield Stack(stack.nodes, tuple(thresholds), finish)


def _lowest(ended: dict[Stack, float]) -> tuple[Stack, float]:
    stack = min(ended, key=lambda stack: ended[stack])
    return stack, ended[stack]
