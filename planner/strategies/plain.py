"""Plain decoding: nothing is drafted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..records.draft import Growth
from ..records.ops import Ops
from ..records.recording import Recorded, Rows
from ..records.results import PositionResults, of_one_size
from .base import Source, Strategy, Trees
from .offers import Graded, Limits

PLAIN = "plain decoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPolicy(Strategy):
    """Decode one token at a time; nothing is drafted."""

    kind: Literal["plain"] = "plain"

    source: ClassVar[Source] = "none"
    complexity: ClassVar = 0
    is_recorded: ClassVar = False
    grid_place: ClassVar = 0
    names: ClassVar = {"plain": lambda found, drafter: PLAIN}

    @property
    def code(self) -> str:
        return "plain"

    @property
    def max_verify_tokens(self) -> int:
        return 1

    @property
    def children(self) -> int:
        return 0

    @property
    def sure_width(self) -> int:
        return 0

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        yield from ()  # it asks nothing
        return ops.fixed((), (-1,), (0,), ())

    def results(self, recorded: Recorded) -> PositionResults:
        return plain_results(recorded.rows)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        yield Graded(cls(), plain_results(recorded.rows))

    @classmethod
    def probes(cls, most_tokens: int) -> list[PlainPolicy]:
        return [cls()]


def plain_results(rows: Rows) -> PositionResults:
    """Return the results of drafting nothing."""
    return of_one_size(np.zeros(len(rows.left), dtype=np.int64), 1, ())
