"""Random verification costs of the shapes that real ones have."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CurveKind = Literal["convex", "stepped", "inverted"]
Number = TypeVar("Number", float, Fraction)
KINDS: tuple[CurveKind, ...] = ("convex", "stepped", "inverted")


def random_costs(kind: CurveKind, random: np.random.Generator, nodes: int) -> Floats:
    """Return (nodes + 1,) costs above 0, in units of one token's."""
    if kind == "convex":
        return 1.0 + np.concatenate(([0.0], np.sort(random.random(nodes) ** 3).cumsum()))
    tile = int(random.integers(2, 9))
    steps = np.arange(nodes + 1) // tile
    stepped = 1.0 + random.uniform(0.05, 0.8) * steps + random.uniform(0.0, 0.02) * np.arange(nodes + 1)
    if kind == "inverted":  # a whole tile dearer than the next
        stepped += np.where(steps % int(random.integers(2, 4)) == 1, random.uniform(0.2, 1.5), 0.0)
    return np.asarray(stepped)


def random_utilities(random: np.random.Generator, nodes: int) -> Floats:
    """Return (nodes + 1,): 1, and then path probabilities added best first."""
    gains = np.sort(random.random(nodes) ** 2)[::-1]
    return 1.0 + np.concatenate(([0.0], gains.cumsum()))


def select_max_valid_index(utilities: Sequence[Number], costs: Sequence[Number], threshold: Number) -> int:
    """Return what `cast_growth.last_steep` defines, on floats and on exact fractions."""
    last = 0
    for index in range(1, len(utilities)):
        if utilities[index] - utilities[last] >= threshold * (costs[index] - costs[last]):
            last = index
    return last
