"""Tables of a plan's cells: what they promise, and what they kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .report import Table

if TYPE_CHECKING:
    from ..planner.plans.plan import Plan
    from ..planner.plans.validation import Validation


def plan_table(plan: Plan) -> Table:
    """Return what a plan chose for each cell and what that promises."""
    from ..planner.reasons.facts import heading
    from ..planner.reasons.sentences import name_of

    rows = []
    for cell in plan.cells:
        promise, other = cell.prediction, cell.runner_up
        kept = () if plan.bound is None else ("kept" if cell.keeps_bound else "broken",)
        rows.append(
            (
                cell.batch,
                cell.context,
                cell.policy.label,
                cell.drafter,
                promise.tokens_per_s,
                _interval(promise.low, promise.high),
                promise.speedup_over_plain,
                *kept,
                None if other is None else name_of(other.label, other.drafter),
            )
        )
    bound = () if plan.bound is None else (str(plan.bound),)
    columns = ("batch", "context", "policy", "drafter", "tokens/s", "90 %", "x plain", *bound, "runner-up")
    return Table(title=heading(plan), columns=columns, rows=rows)


def published_table(plan: Plan) -> Table:
    """Return what every published default would keep of the plan's speed over all cells."""
    from ..planner.reasons.facts import published_shares

    rows = [
        (each.name, each.least, each.middle, each.most, each.priced, each.slower_than_plain)
        for each in published_shares(plan)
    ]
    columns = ("default", "least", "median", "most", "cells", "slower than plain in")
    return Table(title="published defaults, as shares of the plan's speed", columns=columns, rows=rows)


def validation_table(done: Validation) -> Table:
    """Return predicted and measured tokens/s of each cell."""
    shared = ("batch", "context", "policy", "drafter")
    columns = (*shared, "predicted", "90 %", "measured", "error", "machine's pace", "plain", "x plain")
    rows = [
        (
            row.batch,
            row.context,
            row.policy,
            row.drafter,
            row.predicted_tokens_per_s,
            _interval(*row.interval),
            row.measured_tokens_per_s,
            f"{row.error:.1%}",
            "" if row.machine_speed is None else f"{row.machine_speed:.0%}",
            row.plain_tokens_per_s,
            row.speedup,
        )
        for row in done.rows
    ]
    return Table(title=f"plan {done.plan_id} validated, tokens/s of all sequences", columns=columns, rows=rows)


def _interval(low: float, high: float) -> str:
    return f"{low:,.1f} to {high:,.1f}"
