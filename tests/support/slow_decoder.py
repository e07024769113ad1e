"""Decoding token by token with a live drafter: slow, obvious, and shares no code with the replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy

from .synthetic import SkilledDrafter

Path = tuple[int, ...]  # drafted tokens below the root
Pair = tuple[Path, Path]  # prompt, continuation


@dataclass
class Drawn:
    """One sequence's tree: the drafted paths, and the widths of the forwards behind it."""

    paths: set[Path]
    widths: list[int]


@dataclass
class Log:
    """What each round did; a text is -1 where it was decoded before."""

    contexts: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    catch_up: list[int] = field(default_factory=list)
    widths: list[list[int]] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)


Draw = Callable[[list[Path]], list[Drawn]]  # committed texts of the running sequences -> their trees


def decode(draw: Draw, pairs: Sequence[Pair], batch: int) -> Log:
    """Decode all texts with `batch` slots, which texts that were decoded before keep busy until the last is done."""
    log, entered = Log(), 0
    slots: dict[int, dict[str, list[int]]] = {}
    while entered < len(pairs) or any(s["counts"][0] for s in slots.values()):
        while len(slots) < batch:
            text = entered % len(pairs)
            counts = [int(entered < len(pairs))]
            new = {"text": [text], "out": [pairs[text][1][0]], "fresh": [1], "counts": counts}
            _enter(slots, new)
            entered += 1
        committed = [(*pairs[s["text"][0]][0], *s["out"]) for s in slots.values()]
        trees = draw(committed)
        log.contexts.append(max(len(tokens) for tokens in committed) - 1)
        log.nodes.append(max(1 + len(tree.paths) for tree in trees))
        log.catch_up.append(max(s["fresh"][0] for s in slots.values()))
        log.widths.append(trees[0].widths)
        log.texts.append([s["text"][0] if s["counts"][0] else -1 for s in slots.values()])
        log.kept.append([_emit(s, tree, pairs[s["text"][0]][1]) for s, tree in zip(slots.values(), trees, strict=True)])
        slots = _remaining(slots, {s: len(pairs[slots[s]["text"][0]][1]) == len(slots[s]["out"]) for s in slots})
    return log


def _emit(slot: dict[str, list[int]], tree: Drawn, truth: Path) -> int:
    """Emit the target's tokens as long as they were drafted, and one more; return how many."""
    start, drafted = len(slot["out"]), True
    while drafted and len(slot["out"]) < len(truth):
        slot["out"].append(truth[len(slot["out"])])
        drafted = tuple(slot["out"][start:]) in tree.paths
    slot["fresh"] = [len(slot["out"]) - start]
    return slot["fresh"][0]


def _enter(slots: dict[int, dict[str, list[int]]], new: dict[str, list[int]]) -> None:
    """Let a text enter where one left, so that whoever took that place is back where it lies."""
    last = len(slots)
    free = next((place for place, slot in slots.items() if slot["lies"] == [last]), last)
    if free != last:
        slots[last] = slots[free]
    slots[free] = new | {"lies": [free]}


def _remaining(slots: dict[int, dict[str, list[int]]], is_done: dict[int, bool]) -> dict[int, dict[str, list[int]]]:
    """Let texts leave, each giving its place to the last."""
    order = [id(slots[s]) for s in sorted(slots) if is_done[s]]
    for gone in order:
        place = next(s for s in slots if id(slots[s]) == gone)
        last = max(slots)
        slots[place] = slots[last]
        del slots[last]
    return dict(sorted(slots.items()))


def drawing(policy: TreePolicy, drafter: SkilledDrafter) -> Draw:
    """Return how a policy draws with a live drafter; every sequence on its own."""
    match policy:
        case PlainPolicy():
            return lambda batch: [Drawn(set(), []) for _ in batch]
        case ChainPolicy():
            return lambda batch: [_chain(drafter, tokens, policy.length) for tokens in batch]
        case LookupPolicy():
            return lambda batch: [_lookup(policy, tokens) for tokens in batch]
        case StaticPolicy():
            return lambda batch: [_static(policy, drafter, tokens) for tokens in batch]
        case Eagle2Policy():
            return lambda batch: [_beam(policy, drafter, tokens) for tokens in batch]
    raise AssertionError(policy)


def _chain(drafter: SkilledDrafter, tokens: Path, length: int) -> Drawn:
    drafts: Path = ()
    for _ in range(length):
        drafts += (drafter.best(tokens + drafts, 1)[0][0],)
    return Drawn({drafts[:end] for end in range(1, length + 1)}, [1] * length)


def _lookup(policy: LookupPolicy, tokens: Path) -> Drawn:
    for ngram in range(policy.max_ngram, policy.min_ngram - 1, -1):
        for start in range(len(tokens) - ngram - 1, -1, -1):
            if tokens[start : start + ngram] == tokens[-ngram:]:
                drafts = tokens[start + ngram : start + ngram + policy.length]
                return Drawn({drafts[:end] for end in range(1, len(drafts) + 1)}, [])
    return Drawn(set(), [])


def _static(policy: StaticPolicy, drafter: SkilledDrafter, tokens: Path) -> Drawn:
    tree = policy.tree
    path: dict[int, Path] = {0: ()}
    for node in range(1, tree.size):
        above: Path = path[tree.parents[node]]
        rank = tree.ranks[node]
        path[node] = (*above, drafter.best(tokens + above, rank + 1)[rank][0])
    inner = {path[parent] for parent in tree.parents[1:]}
    widths = [sum(len(node) == depth for node in inner) for depth in range(tree.depth)]
    return Drawn(set(path.values()) - {()}, widths)


def _beam(policy: Eagle2Policy, drafter: SkilledDrafter, tokens: Path) -> Drawn:
    frontier: list[tuple[np.float32, Path]] = [(np.float32(0.0), ())]
    seen: list[tuple[np.float32, Path]] = []
    widths = []
    for _ in range(policy.depth + 1):
        widths.append(len(frontier))
        layer = [
            (score + log_prob, (*path, token))
            for score, path in frontier
            for token, log_prob in drafter.best(tokens + path, policy.top_k)
        ]
        seen += layer
        frontier = sorted(layer, key=lambda node: -node[0])[: policy.top_k]
    chosen = sorted(seen, key=lambda node: -node[0])[: policy.verify_tokens - 1]
    return Drawn({path for _, path in chosen}, widths)
