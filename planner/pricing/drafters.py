"""What the forwards of drafters cost in a cell, and verifying from the states of those that are exits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import MeasurementError
from ...profiler.records.excess import mean_over_median
from ...profiler.records.surface import LatencySurface
from .cells import Cell
from .fed import drafted_tokens, padded_tokens, reached_context
from .table import CostTable, Verification, cost_table


def drafted_tables(
    drafts: Mapping[str, LatencySurface], cell: Cell, excess: float, knots: Sequence[int] = ()
) -> tuple[dict[str, CostTable], dict[str, str]]:
    """Return the tables of the drafters that run in a cell, and why the others do not."""
    tables, reasons = dict[str, CostTable](), dict[str, str]()
    for name, surface in drafts.items():
        try:
            context = reached_context(surface, cell.batch, cell.context)
            fed = drafted_tokens(surface, cell.batch, context)
            own = mean_over_median(surface, excess)
            tables[name] = cost_table(surface, cell.batch, context, fed, own, knots)
        except MeasurementError as error:
            reasons[name] = str(error)
    return tables, reasons


def resumed_verification(
    surface: LatencySurface, cell: Cell, run_tokens: Sequence[int], excess: float
) -> Verification | None:
    """Return the cost of verifying from an exit's states, a root alone whole; None where nothing runs in the cell."""
    try:
        context = reached_context(surface, cell.batch, cell.context)
        padded = padded_tokens(surface, cell.batch, context)
    except MeasurementError:
        return None
    table = cost_table(surface, cell.batch, context, padded, mean_over_median(surface, excess))
    return Verification(table=table, run_tokens=(*run_tokens[:2], *padded[2:]))
