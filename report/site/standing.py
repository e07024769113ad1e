"""How the plans do: of every setup the one that counts, beside its measurements."""

from __future__ import annotations

from dataclasses import dataclass

from ...db.rows import PlanRow
from ...errors import SpectuneError
from ...planner.plans.plan import Plan
from .contents import Contents, Setup
from .kept import DRIFTED, KeptCell, kept_cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One setup, its plan that counts, if any, and whether it keeps its promises; `fault`: why it cannot be read."""

    setup: Setup
    row: PlanRow | None
    plan: Plan | None
    fault: str
    cells: tuple[KeptCell, ...]

    @property
    def drifted(self) -> tuple[KeptCell, ...]:
        """Cells that left the interval they promised, by the test that decoders use."""
        return tuple(cell for cell in self.cells if cell.verdict in DRIFTED)

    @property
    def measured(self) -> tuple[KeptCell, ...]:
        """Cells of which anything was measured."""
        return tuple(cell for cell in self.cells if cell.verdict != "unseen")


def standings(contents: Contents, most: int) -> list[Standing]:
    """Return the standing of at most so many setups, that of the newest plan first; a store may have thousands."""
    return [_standing(contents, setup) for setup in list(contents.setups)[:most]]


def _standing(contents: Contents, setup: Setup) -> Standing:
    row = contents.counting(setup)
    if row is None:
        return Standing(setup=setup, row=None, plan=None, fault="", cells=())
    try:
        plan = contents.plan(row.id)
        validations, observations = contents.validations(row.id), contents.observations(row.id)
        cells = kept_cells(plan, validations.readable, observations.readable)
    except SpectuneError as error:
        return Standing(setup=setup, row=row, plan=None, fault=str(error), cells=())
    return Standing(setup=setup, row=row, plan=plan, fault="", cells=tuple(cells))
