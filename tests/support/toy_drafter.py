"""A drafter that is a plain function of the prefix, and a planner scorer that asks it."""

from __future__ import annotations

import math
import random

import numpy as np

from spectune.planner.records.draft import Children, DraftBatch, Ints


class ToyDrafter:
    """A seeded distribution over a small vocabulary after every prefix.

    With `levels` the unnormalised probabilities take few values, so equal path scores abound.
    """

    def __init__(self, seed: int, vocabulary: int, levels: int | None = None):
        """Fix the function; the same arguments always give the same distributions."""
        self.seed, self.vocabulary, self.levels = seed, vocabulary, levels

    def best(self, path: tuple[int, ...], children: int) -> list[tuple[int, np.float32]]:
        """Return the best tokens after the path with conditional log-probabilities, best first."""
        source = random.Random(repr((self.seed, path)))
        tokens = list(range(self.vocabulary))
        source.shuffle(tokens)
        draws = [self._weight(source) for _ in tokens]
        order = sorted(range(self.vocabulary), key=lambda place: -draws[place])
        return [(tokens[place], np.float32(math.log(draws[place] / sum(draws)))) for place in order[:children]]

    def _weight(self, source: random.Random) -> float:
        return source.random() ** 4 + 1e-6 if self.levels is None else float(2 ** source.randrange(self.levels))


class ToyScorer:
    """One ToyDrafter per sequence, asked layer by layer; keeps the widths and children it was asked for."""

    def __init__(self, drafters: list[ToyDrafter]):
        """Start a round at the committed text of every sequence."""
        self.drafters = drafters
        self.paths: list[list[tuple[int, ...]]] = [[()] for _ in drafters]
        self.widths: list[int] = []
        self.children: list[int] = []

    def root(self, children: int) -> Children:
        """Return the best children of the committed texts."""
        return self._children(children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        """Return the best children of the next layer's nodes."""
        for row, (drafter, above) in enumerate(zip(self.drafters, self.paths, strict=True)):
            nodes = zip(parents[row].tolist(), ranks[row].tolist(), strict=True)
            self.paths[row] = [(*above[slot], drafter.best(above[slot], rank + 1)[rank][0]) for slot, rank in nodes]
        return self._children(children)

    def _children(self, children: int) -> Children:
        self.widths.append(len(self.paths[0]))
        self.children.append(children)
        best = [[d.best(path, children) for path in paths] for d, paths in zip(self.drafters, self.paths, strict=True)]
        tokens = [[[token for token, _ in node] for node in row] for row in best]
        scores = [[[score for _, score in node] for node in row] for row in best]
        return Children(tokens=np.array(tokens, dtype=np.int64), log_probs=np.array(scores, dtype=np.float32))


def drafted_paths(draft: DraftBatch, row: int = 0) -> list[tuple[int, ...]]:
    """Return the tokens from the root down to every node of a row."""
    found: list[tuple[int, ...]] = [()]
    for node in range(1, int(draft.sizes[row])):
        found.append((*found[draft.parents[row, node]], int(draft.tokens[row, node])))
    return found


def toy_scorer(*seeds: int, vocabulary: int = 6, levels: int | None = None) -> ToyScorer:
    """Return a scorer with one drafter per seed."""
    return ToyScorer([ToyDrafter(seed, vocabulary, levels) for seed in seeds])
