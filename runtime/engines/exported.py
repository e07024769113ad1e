"""A plan as an engine runs it: its configuration, what was dropped, and what that costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...errors import PlanError

Basis = Literal["as planned", "re-solved", "alternatives"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A cell in which the engine deviates from the plan; drafters may be None, and speeds, of one source, unknown."""

    batch: int
    context: int
    wanted: str
    wanted_drafter: str | None
    gets: str
    gets_drafter: str | None
    reason: str
    wanted_tokens_per_s: float | None
    gets_tokens_per_s: float | None

    @property
    def loss(self) -> float | None:
        """The share of the planned speed that is lost; None where unknown."""
        if self.wanted_tokens_per_s is None or self.gets_tokens_per_s is None:
            return None
        return 1.0 - self.gets_tokens_per_s / self.wanted_tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan written for one engine.

    Attributes:
        flags, files, command: see `Written`.
        basis: "re-solved": by the planner among all that the engine can run, on the plan's inputs; "alternatives": only
            among those listed in the plan's cells.
        kept: geometric mean over all cells of the engine's speed over the plan's, 1 without loss; None where some
            cell's is unknown.
    """

    engine: str
    version: str  # the recorded one against which the options were checked
    flags: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    command: str
    dropped: tuple[Dropped, ...]  # cells that get something else; empty where the engine runs all of the plan
    basis: Basis
    kept: float | None
    notes: tuple[str, ...]  # what a reader must know or do

    def __post_init__(self) -> None:
        if self.kept is not None and not (math.isfinite(self.kept) and self.kept > 0.0):
            raise PlanError(f"what an export keeps of a plan's speed is a positive share, got {self.kept}")
        if self.basis == "as planned" and self.dropped:
            raise PlanError(f"an export as planned drops nothing, got {len(self.dropped)} dropped cells")
