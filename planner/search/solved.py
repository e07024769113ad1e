"""What a cell of a plan found, and what its plan tells besides."""

from __future__ import annotations

from dataclasses import dataclass

from ..plans.schedule import Place
from .choice import Ballot
from .contest import Contest
from .planned import BesideChoice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolvedCell:
    """What one cell found.

    Attributes:
        contest: all that was priced.
        ballot: which of it is as good as the best.
        beside: what the cell's plan tells besides.
        notes: what a reader must know of the cell.
    """

    contest: Contest
    ballot: Ballot
    beside: BesideChoice
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        """Batch and context."""
        cell = self.contest.costs.cell
        return cell.batch, cell.context
