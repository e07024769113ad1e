"""Toy drafters along one text, and the trees that strategies draw there, as sets of token paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spectune.planner.records.draft import Children, Ints
from spectune.planner.strategies.base import Strategy
from spectune.tuning.recording.node_cache import NodeCache
from spectune.tuning.recording.union import ExpandedLayer, grow_union

from .toy_drafter import ToyDrafter

Path = tuple[int, ...]  # tokens from a root down; () is the root


class ToyTreeDrafter:
    """A forest's drafter that asks a ToyDrafter behind the whole text of every node, and counts what it is asked.

    All but the best `possible` children of a node are never drawn.
    """

    def __init__(
        self, drafter: ToyDrafter, text: Sequence[int], positions: Sequence[int], children: int, possible: int
    ):
        """Stand behind text[: t + 1] for every position t."""
        self.drafter, self.children, self.possible = drafter, children, possible
        self.prefixes: list[Path] = [tuple(text[: t + 1]) for t in positions]

    def roots(self) -> Children:
        """Return the answers behind the rows."""
        return self._answer(self.prefixes)

    def expand(self, parents: Ints, tokens: Ints) -> Children:
        """Return the answers behind new nodes."""
        new = [(*self.prefixes[p], token) for p, token in zip(parents.tolist(), tokens.tolist(), strict=True)]
        self.prefixes += new
        return self._answer(new)

    def _answer(self, prefixes: Sequence[Path]) -> Children:
        best = [self.drafter.best(prefix, self.children) for prefix in prefixes]
        log_probs = np.array([[[score for _, score in row] for row in best]], dtype=np.float32)
        log_probs[:, :, self.possible :] = -np.inf
        tokens = np.array([[[token for token, _ in row] for row in best]], dtype=np.int64)
        return Children(tokens=tokens, log_probs=log_probs)


def grown(
    strategies: Sequence[Strategy],
    text: Sequence[int],
    *,
    seed: int = 0,
    children: int = 6,
    vocabulary: int = 9,
    levels: int | None = None,
    possible: int = 99,
) -> tuple[ToyTreeDrafter, list[ExpandedLayer]]:
    """Grow the strategies' union behind every token of a text but the last; neighbouring positions are joined."""
    positions = np.arange(len(text) - 1)
    drafter = ToyTreeDrafter(ToyDrafter(seed, vocabulary, levels), text, positions.tolist(), children, possible)
    roots = drafter.roots()
    is_next = roots.tokens[0] == np.array(text[1:])[:, None]
    joined = np.flatnonzero(is_next[:-1].any(axis=1))
    forest = NodeCache(drafter, roots, joined, is_next[joined].argmax(axis=1))
    return drafter, grow_union(forest, strategies, np.array(text), positions)


def expanded(layers: Sequence[ExpandedLayer], drafter: ToyDrafter, text: Sequence[int]) -> list[set[Path]]:
    """Return, per position, the nodes whose children were recorded; ranks are turned into tokens by the drafter."""
    found: list[list[Path]] = [[] for _ in text[1:]]
    for layer in layers:
        for position, parent, rank in zip(
            layer.positions.tolist(), layer.parents.tolist(), layer.ranks.tolist(), strict=True
        ):
            if parent < 0:
                found[position].append(())
            else:
                above = found[position][parent]
                prefix = (*text[: position + 1], *above)
                found[position].append((*above, drafter.best(prefix, rank + 1)[rank][0]))
    assert all(len(set(paths)) == len(paths) for paths in found)
    return [set(paths) for paths in found]
