"""What a cell of a plan found, and what its plan tells besides."""

from __future__ import annotations

from dataclasses import dataclass

from ..plans.schedule import Place
from .choice import Ballot
from .contest import Contest
from .planned import BesideChoice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolvedCell:
    """What one cell found: all that was priced, which of it is as good as the best, and notes for its readers."""

    contest: Contest
    ballot: Ballot
    beside: BesideChoice
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        """Batch and context."""
        cell = self.contest.costs.cell
        return cell.batch, cell.context
