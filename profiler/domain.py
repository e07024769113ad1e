"""What a surface is to answer: which batches, contexts and tokens, and where to begin measuring."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ..errors import MeasurementError

Shape = tuple[int, int, int]  # (batch, context_tokens, tokens)
EDGES = 3  # of a matrix unit's tiles that are measured on both sides: behind the first all takes a third longer or more


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Every batch named, contexts from the first to the last, tokens from 1 to most_tokens."""

    batches: tuple[int, ...]  # ascending, distinct
    contexts: tuple[int, ...]  # ascending, distinct; all of these are measured
    most_tokens: int
    least_tokens: int = 1
    tile_rows: int = 0  # 0: no such unit, or its steps are not known
    limits: tuple[tuple[int, int], ...] = ()  # (batch, most tokens) of batches for which more would never pay
    pools_rows: bool = False  # batches share their rows (`records/pooling.py`), so one of them is measured densely

    def __post_init__(self) -> None:
        for name, values, least in (("batches", self.batches, 1), ("contexts", self.contexts, 0)):
            if not values or list(values) != sorted(set(values)) or values[0] < least:
                raise MeasurementError(f"{name} must ascend from at least {least}, got {list(values)}")
        if not 1 <= self.least_tokens <= self.most_tokens:
            raise MeasurementError(f"need 1 <= least_tokens <= most_tokens: {self.least_tokens}, {self.most_tokens}")
        for batch, most in self.limits:
            if not self.least_tokens <= most <= self.most_tokens:
                raise MeasurementError(
                    f"batch {batch} may be limited to {self.least_tokens}..{self.most_tokens} tokens, got {most}"
                )

    def most(self, batch: int) -> int:
        """Return the most tokens per sequence that are measured at a batch size."""
        return dict(self.limits).get(batch, self.most_tokens)

    @property
    def reference_context(self) -> int:
        """The context whose tokens are measured densest; the others tell how it changes."""
        return self.contexts[(len(self.contexts) - 1) // 2]

    @property
    def shapes(self) -> int:
        """Shapes the surface answers for."""
        contexts = self.contexts[-1] - self.contexts[0] + 1
        return contexts * sum(self.most(batch) - self.least_tokens + 1 for batch in self.batches)

    def holds(self, shape: Shape) -> bool:
        """Whether the surface is to answer for a shape."""
        batch, context, tokens = shape
        return (
            batch in self.batches
            and self.contexts[0] <= context <= self.contexts[-1]
            and self.least_tokens <= tokens <= self.most(batch)
        )

    def coarse(self) -> Iterator[Shape]:
        """Yield the shapes measured first: doubling tokens and tile edges at the reference context, fewer elsewhere."""
        for batch, context in product(self.batches, self.contexts):
            doubling = doublings(self.least_tokens, self.most(batch))
            ends_and_middle = sorted({doubling[0], doubling[len(doubling) // 2], doubling[-1]})
            is_reference, is_sparse = context == self.reference_context, self.pools_rows and batch != self.batches[0]
            if is_reference:
                chosen = ends_and_middle if is_sparse else sorted({*doubling, *self.edges(batch)})
            else:
                chosen = sorted({doubling[0], doubling[-1]}) if is_sparse else ends_and_middle
            for tokens in chosen:
                yield batch, context, tokens

    def edges(self, batch: int) -> list[int]:
        """Return the tokens on both sides of the first edges of tiles, ascending, as far as there are some."""
        lasts = {tile * self.tile_rows // batch for tile in range(1, EDGES + 1)}
        return sorted(
            {last + side for last in lasts if self.least_tokens <= last < self.most(batch) for side in (0, 1)}
        )

    def draw(self, count: int, rng: random.Random) -> list[Shape]:
        """Return up to `count` random shapes that are not among the coarse ones, batches in turn."""
        taken = set(self.coarse())
        drawn: list[Shape] = []
        for _ in range(20 * count):
            if len(drawn) == count:
                break
            batch = self.batches[len(drawn) % len(self.batches)]
            context = rng.randint(self.contexts[0], self.contexts[-1])
            shape = (batch, context, rng.randint(self.least_tokens, self.most(batch)))
            if shape not in taken:
                taken.add(shape)
                drawn.append(shape)
        return drawn


def doublings(least: int, most: int) -> list[int]:
    """Return least, 2 least, 4 least, ... and most."""
    values = [least]
    while values[-1] * 2 < most:
        values.append(values[-1] * 2)
    return values if most == least else [*values, most]
