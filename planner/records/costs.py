"""What a cell's forwards cost, as far as a strategy needs: milliseconds by context and tokens."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ForwardCosts(Protocol):
    """What forwards of one model cost."""

    @property
    def contexts(self) -> Floats:
        """The contexts that were measured, ascending."""

    @property
    def most_tokens(self) -> int:
        """Most tokens of one forward."""

    def row(self, context: float) -> Floats:
        """Return what forwards of 0, 1, 2, ... tokens take at a context."""

    def layers(self, context: float, width: int) -> tuple[float, ...]:
        """Return what a layer of 0, 1, ... up to `width` nodes takes at a context."""


class PlannedCell(Protocol):
    """One point of a plan."""

    @property
    def batch(self) -> int:
        """Sequences."""

    @property
    def context(self) -> int:
        """Tokens of the committed text."""


class PlannedCosts(Protocol):
    """What the forwards of one cell cost."""

    @property
    def cell(self) -> PlannedCell:
        """Where."""

    @property
    def verify(self) -> ForwardCosts:
        """Of the target, by tokens in the tree."""

    def drafting(self, drafter: str) -> ForwardCosts:
        """Return what a drafter's forwards cost; PlanError where it does not run there."""

    def has_host(self, kind: str, drafter: str | None) -> bool:
        """Return whether the host was timed in rounds of a kind."""
