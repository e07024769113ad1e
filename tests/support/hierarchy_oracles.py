"""Slow, obvious truths about hierarchies that share no code with the planner: play, bookkeeping, enumeration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise, product

import numpy as np
from numpy.typing import NDArray

from spectune.planner.hierarchy.records import (
    EdgeCosts,
    Hierarchy,
    HierarchyInputs,
    Level,
    ModelCosts,
    SinglePassDrafter,
    TopTree,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Walk = Callable[[Ints, np.random.Generator], Ints]  # drafts -> tokens a tree's verification yields


class Reading:
    """The inputs by name."""

    def __init__(self, inputs: HierarchyInputs) -> None:
        self.models = {model.name: model for model in inputs.models}
        self.order = [model.name for model in inputs.models]
        self.acceptance = inputs.acceptance
        self.blocks = {block.name: block for block in inputs.blocks}
        self.edges = {(edge.verifier, edge.drafter): edge.forward_ms for edge in inputs.edges}
        self.trees = {tree.name: tree for tree in inputs.trees}
        self.target = self.order[-1]

    def curve(self, verifier: str, drafter: str) -> tuple[float, ...]:
        return self.edges.get((verifier, drafter), self.models[verifier].forward_ms)

    def verify_ms(self, verifier: str, drafter: str, drafts: int) -> float:
        return self.curve(verifier, drafter)[drafts + 1] + self.models[verifier].host_ms

    def chance(self, verifier: str, drafter: str, place: int) -> float:
        """Chance that draft number `place`, from 1, is accepted, given that those before were."""
        if drafter in self.blocks:
            return self.blocks[drafter].acceptance[verifier][place - 1]
        return self.acceptance[self.order.index(verifier)][self.order.index(drafter)]

    def limit(self, verifier: str, drafter: str, tree: str | None = None) -> int:
        """Most drafts that a verification takes."""
        if tree is not None:
            most = len(self.trees[tree].expected_tokens) - 1
        else:
            most = len(self.curve(verifier, drafter)) - 2
            if drafter in self.blocks:
                most = min(most, len(self.blocks[drafter].acceptance[verifier]))
        if drafter in self.blocks:
            most = min(most, len(self.blocks[drafter].draft_ms) - 1)
        return most

    def limit_above(self, hierarchy: Hierarchy, place: int) -> int:
        levels = hierarchy.levels
        if place + 1 < len(levels):
            return self.limit(levels[place + 1].name, levels[place].name)
        return self.limit(self.target, levels[-1].name, hierarchy.tree)


class Play:
    """Many calls of a hierarchy at once, coin by coin."""

    def __init__(self, inputs: HierarchyInputs, hierarchy: Hierarchy, seed: int, *, truncated: bool = False) -> None:
        self.reading, self.hierarchy, self.truncated = Reading(inputs), hierarchy, truncated
        self.random = np.random.default_rng(seed)
        self.forwards: dict[str, int] = defaultdict(int)

    def ms_per_token(self, rounds: int, walk: Walk | None = None) -> tuple[float, float]:
        """Return the time per token over so many target rounds, and its standard error."""
        reading, top = self.reading, self.hierarchy.levels[-1].name
        drafts, ms = self.call(len(self.hierarchy.levels) - 1, rounds)
        if walk is None:
            tokens = self.accepted(reading.target, top, drafts) + 1
            ms = ms + self.costs(reading.target, top, drafts)
        else:
            assert self.hierarchy.tree is not None
            tree = reading.trees[self.hierarchy.tree]
            tokens = walk(drafts, self.random)
            fed = np.array(tree.verify_tokens)[drafts] - 1
            ms = ms + self.costs(reading.target, top, fed) + tree.host_ms
        ratio = float(ms.sum() / tokens.sum())
        error = float(np.std(ms - ratio * tokens) / tokens.mean() / np.sqrt(rounds))
        self.tokens = int(tokens.sum())
        return ratio, error

    def call(self, place: int, calls: int) -> tuple[Ints, Floats]:
        """Return tokens and milliseconds of each of so many calls of a level."""
        level, reading = self.hierarchy.levels[place], self.reading
        if place == 0:
            return self.drafted(level, calls)
        below = self.hierarchy.levels[place - 1].name
        tokens, ms = np.zeros(calls, dtype=np.int64), np.zeros(calls)
        running = np.arange(calls)
        while len(running):
            drafts, draft_ms = self.call(place - 1, len(running))
            ms[running] += draft_ms + self.costs(level.name, below, drafts)
            tokens[running] += self.accepted(level.name, below, drafts) + 1
            self.forwards[level.name] += len(running)
            running = running[tokens[running] < level.threshold]
        cut = level.threshold if self.truncated else reading.limit_above(self.hierarchy, place)
        return np.minimum(tokens, cut), ms

    def drafted(self, level: Level, calls: int) -> tuple[Ints, Floats]:
        tokens = np.full(calls, level.threshold)
        block = self.reading.blocks.get(level.name)
        if block is not None:
            self.forwards[level.name] += calls
            return tokens, np.full(calls, block.draft_ms[level.threshold])
        self.forwards[level.name] += calls * level.threshold
        model = self.reading.models[level.name]
        return tokens, np.full(calls, level.threshold * (model.forward_ms[1] + model.host_ms))

    def accepted(self, verifier: str, drafter: str, drafts: Ints) -> Ints:
        kept, alive = np.zeros(len(drafts), dtype=np.int64), np.ones(len(drafts), dtype=bool)
        for place in range(1, int(drafts.max()) + 1):
            alive &= drafts >= place
            alive &= self.random.random(len(drafts)) < self.reading.chance(
                verifier, drafter, min(place, self.last(drafter, verifier))
            )
            kept += alive
        return kept

    def last(self, drafter: str, verifier: str) -> int:
        block = self.reading.blocks.get(drafter)
        return len(block.acceptance[verifier]) if block is not None else 1

    def costs(self, verifier: str, drafter: str, drafts: Ints) -> Floats:
        curve = np.array(self.reading.curve(verifier, drafter))
        return curve[drafts + 1] + self.reading.models[verifier].host_ms


def booked_ms_per_token(inputs: HierarchyInputs, hierarchy: Hierarchy, *, truncated: bool = False) -> float:
    """Return the exact time per token by moving probability from token count to token count, one outcome at a time."""
    reading, levels = Reading(inputs), hierarchy.levels
    if not levels:
        return reading.verify_ms(reading.target, "", 0)
    source = levels[0]
    if source.name in reading.blocks:
        ms = reading.blocks[source.name].draft_ms[source.threshold]
    else:
        model = reading.models[source.name]
        ms = source.threshold * (model.forward_ms[1] + model.host_ms)
    law = {source.threshold: 1.0}
    for place in range(1, len(levels)):
        level, below = levels[place], levels[place - 1].name
        cut = level.threshold if truncated else reading.limit_above(hierarchy, place)
        standing: dict[int, float] = defaultdict(float, {0: 1.0})
        ended: dict[int, float] = defaultdict(float)
        call_ms = 0.0
        for tokens in range(level.threshold):
            for drafts, chance in law.items():
                here = standing[tokens] * chance
                call_ms += here * (ms + reading.verify_ms(level.name, below, drafts))
                for new, outcome in outcomes(reading, level.name, below, drafts):
                    place_after = tokens + new
                    if place_after < level.threshold:
                        standing[place_after] += here * outcome
                    else:
                        ended[min(place_after, cut)] += here * outcome
        law, ms = dict(ended), call_ms
    top, round_ms, tokens_out = levels[-1].name, ms, 0.0
    for drafts, chance in law.items():
        if hierarchy.tree is None:
            round_ms += chance * reading.verify_ms(reading.target, top, drafts)
            tokens_out += chance * sum(n * outcome for n, outcome in outcomes(reading, reading.target, top, drafts))
        else:
            tree = reading.trees[hierarchy.tree]
            fed_ms = reading.verify_ms(reading.target, top, tree.verify_tokens[drafts] - 1)
            round_ms += chance * (fed_ms + tree.host_ms)
            tokens_out += chance * tree.expected_tokens[drafts]
    return round_ms / tokens_out


def outcomes(reading: Reading, verifier: str, drafter: str, drafts: int) -> Iterator[tuple[int, float]]:
    """Yield tokens a verification yields, with their chances."""
    alive = 1.0
    for place in range(1, drafts + 1):
        chance = reading.chance(verifier, drafter, place)
        yield place, alive * (1.0 - chance)
        alive *= chance
    yield drafts + 1, alive


def every_hierarchy(inputs: HierarchyInputs, max_threshold: int) -> Iterator[Hierarchy]:
    """Yield every allowed hierarchy."""
    reading = Reading(inputs)
    yield Hierarchy()
    drafters = reading.order[:-1]
    for count in range(len(drafters) + 1):
        for chosen in combinations(drafters, count):
            for source in ((), *((name,) for name in reading.blocks)):
                yield from with_thresholds(reading, (*source, *chosen), max_threshold)


def with_thresholds(reading: Reading, names: tuple[str, ...], max_threshold: int) -> Iterator[Hierarchy]:
    """Yield the chain with every finish and all thresholds that fit."""
    if not names:
        return
    for lower, upper in zip(names, (*names[1:], reading.target), strict=True):
        is_last = upper == reading.target
        if lower in reading.blocks and not is_last and upper not in reading.blocks[lower].acceptance:
            return
    trees: list[str | None] = [tree.name for tree in reading.trees.values() if tree.drafter == names[-1]]
    if names[-1] not in reading.blocks or reading.target in reading.blocks[names[-1]].acceptance:
        trees.append(None)
    for tree in trees:
        limits = [reading.limit(upper, lower) for lower, upper in pairwise(names)]
        limits.append(reading.limit(reading.target, names[-1], tree))
        if names[0] in reading.blocks:
            limits[0] = min(limits[0], len(reading.blocks[names[0]].draft_ms) - 1)
        for thresholds in product(*(range(1, min(limit, max_threshold) + 1) for limit in limits)):
            levels = tuple(Level(name=n, threshold=t) for n, t in zip(names, thresholds, strict=True))
            yield Hierarchy(levels=levels, tree=tree)


def random_family(seed: int, drafters: int, tokens: int) -> HierarchyInputs:
    """Return models at constant cost, the dearer the better, with a margin of luck."""
    random = np.random.default_rng(seed)
    costs = [*np.sort(np.exp(random.uniform(np.log(0.005), np.log(0.6), drafters))).tolist(), 1.0]
    skills = np.sort(random.uniform(0.2, 1.0, drafters + 1))
    acceptance = tuple(
        tuple(
            float(np.clip(1.0 - 0.9 * abs(skills[i] - skills[j]) - random.uniform(0.05, 0.3), 0.05, 0.97))
            for j in range(i)
        )
        for i in range(drafters + 1)
    )
    models = tuple(ModelCosts(name=f"m{i}", forward_ms=(0.0, *[cost] * tokens)) for i, cost in enumerate(costs))
    return HierarchyInputs(models=models, acceptance=acceptance)


def random_curve(random: np.random.Generator, scale: float, tokens: int) -> tuple[float, ...]:
    """Return a curve with a slope, steps at tiles and inversions."""
    fed = np.arange(tokens + 1)
    tile = int(random.integers(2, 6))
    slope, step = random.uniform(0.0, 0.03), random.uniform(0.0, 0.3)
    curve = scale * (1.0 + slope * fed + step * (fed // tile) + random.uniform(-0.1, 0.1, tokens + 1))
    return tuple(curve.tolist())


def random_setup(seed: int, drafters: int, tokens: int) -> HierarchyInputs:
    """Return models with stepped, inverted curves and host times, two blocks, an early exit's edge, and trees."""
    random = np.random.default_rng(seed)
    plain = random_family(seed, drafters, tokens)
    models = tuple(
        ModelCosts(
            name=model.name,
            forward_ms=random_curve(random, model.forward_ms[1], tokens),
            host_ms=float(random.uniform(0.0, 0.05)),
        )
        for model in plain.models
    )
    names = [model.name for model in models]
    blocks = (
        SinglePassDrafter(name="lookup", draft_ms=(0.0, *[0.01] * 5), acceptance=falling(random, names, 5)),
        SinglePassDrafter(name="heads", draft_ms=(0.0, 0.02, 0.03, 0.03), acceptance=falling(random, names[-1:], 3)),
    )
    edges = (EdgeCosts(verifier=names[-1], drafter=names[0], forward_ms=random_curve(random, 0.8, tokens)),)
    trees = tuple(
        caterpillar(f"{name} tree", name, random.uniform(0.4, 0.8), random.uniform(0.05, 0.2), (tokens - 1) // 2)
        for name in (names[-2], "heads")
    )
    return HierarchyInputs(models=models, acceptance=plain.acceptance, blocks=blocks, edges=edges, trees=trees)


def falling(random: np.random.Generator, names: list[str], tokens: int) -> dict[str, tuple[float, ...]]:
    """Return conditional acceptances that rise or fall along the draft, by model."""
    return {name: tuple(random.uniform(0.2, 0.9, tokens).tolist()) for name in names}


def caterpillar(name: str, drafter: str, first: float, second: float, depth: int) -> TopTree:
    """Return a chain with one sibling at every place, as a tree: `first` and `second` are the ranks' acceptances."""
    drafts = range(depth + 1)
    return TopTree(
        name=name,
        drafter=drafter,
        expected_tokens=tuple(1.0 + sum(first**k * (first + second) for k in range(n)) for n in drafts),
        verify_tokens=tuple(2 * n + 1 for n in drafts),
    )
