"""Tables of a plan's cells: what they promise, and what was measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .report import Table, facts_of

if TYPE_CHECKING:
    from ..planner.plans.plan import Plan
    from ..planner.plans.validation import Validation, ValidationRow


NOT_SLOWER = 0.98  # of plain decoding's speed: what is measured below is no noise


def plan_table(plan: Plan) -> Table:
    """Return what a plan chose for each cell and what that promises."""
    from ..planner.reasons.facts import heading
    from ..planner.strategies.naming import name_of

    rows = []
    for cell in plan.cells:
        promise, other = cell.prediction, cell.runner_up
        kept = () if plan.bound is None else ("kept" if cell.keeps_bound else "broken",)
        rows.append(
            (
                cell.batch,
                cell.context if cell.priced_at is None else f"{cell.context} (as {cell.priced_at})",
                name_of(cell.policy.code, cell.drafter),
                promise.tokens_per_s,
                _interval(promise.low, promise.high),
                promise.speedup_over_plain,
                *kept,
                None if other is None else name_of(other.label, other.drafter),
            )
        )
    bound = () if plan.bound is None else (str(plan.bound),)
    columns = ("batch", "context", "how to decode", "tokens/s", "90 %", "x plain", *bound, "runner-up")
    return Table(
        title=f"the fastest way to decode, predicted tokens/s of all sequences: {heading(plan)}",
        columns=columns,
        rows=rows,
    )


def settings_table(plan: Plan) -> Table:
    """Return all settings of what a plan chose, a line for each cell."""
    rows = [
        (cell.batch, cell.context, cell.policy.code, cell.policy.draft_forwards, cell.policy.max_verify_tokens)
        for cell in plan.cells
    ]
    columns = ("batch", "context", "settings", "most draft forwards", "most tokens verified")
    return Table(title="settings of each cell, of one sequence and round", columns=columns, rows=rows)


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
    """Return predicted and measured tokens/s of each cell, and by how much what made it faster or slower."""
    from ..planner.strategies.naming import name_of

    columns = (
        *("batch", "context", "how to decode"),
        "predicted",
        "90 %",
        "measured",
        "error",
        "texts",
        "machine",
        "rounds",
        "plain",
        "x plain",
    )
    rows = [
        (
            row.batch,
            row.context if row.at_context in (None, row.context) else f"{row.context} (texts: {row.at_context})",
            name_of(row.policy, row.drafter),
            row.predicted_tokens_per_s,
            _interval(*row.interval),
            row.measured_tokens_per_s,
            f"{row.error:.1%}",
            _effect(row.by_texts),
            _effect(row.machine_speed),
            _effect(row.by_rounds),
            row.plain_tokens_per_s,
            row.speedup,
        )
        for row in done.rows
    ]
    number = "" if done.plan_id is None else f" {done.plan_id}"
    return Table(title=f"plan{number}, predicted and measured tokens/s of all sequences", columns=columns, rows=rows)


def validation_facts(row: ValidationRow) -> dict[str, Any]:
    """Return a measured cell as JSON values, with what follows from it."""
    follows = {
        "error": row.error,
        "error_at_pace": row.error_at_pace,
        "by_texts": row.by_texts,
        "by_rounds": row.by_rounds,
        "speedup": row.speedup,
        "plain_is_faster": row.drafter is not None and row.speedup < NOT_SLOWER,
    }
    return {**facts_of(row), **follows}


def slower_than_plain(done: Validation) -> str:
    """Return where a plan was slower than plain decoding by more than noise, and by how much; "" if nowhere."""
    from ..planner.strategies.naming import name_of

    return "; ".join(
        f"batch {row.batch}, context {row.context} ({name_of(row.policy, row.drafter)}: {row.speedup:.2f} x plain)"
        for row in done.rows
        if row.drafter is not None and row.speedup < NOT_SLOWER
    )


def why_apart(row: ValidationRow) -> str:
    """Return what did most to set measured and predicted speed apart, and what to do about it."""
    effects = {"texts": row.by_texts, "machine": row.machine_speed, "rounds": row.by_rounds}
    known = {name: math.log(effect) for name, effect in effects.items() if effect is not None}
    if len(known) < len(effects):
        return "are prompts, lengths and number format those of the profile?"
    direction = math.copysign(1.0, math.log(row.measured_tokens_per_s) - math.log(row.predicted_tokens_per_s))
    name = max(known, key=lambda name: direction * known[name])
    how = f"{abs(math.expm1(known[name])):.0%} {'more' if known[name] > 0.0 else 'fewer'}"
    if name == "texts":
        return f"of these texts a round keeps {how} tokens than of the profile's; profile on prompts of their kind"
    if name == "machine":
        return f"the machine runs {how} forwards a second than in its profile; profile it as it will be used"
    return f"{how} rounds a second than its forwards and the machine's pace tell; profile again, and plan from that"


def _effect(factor: float | None) -> str:
    return "" if factor is None else f"{factor - 1.0:+.1%}"


def _interval(low: float, high: float) -> str:
    return f"{low:,.1f} to {high:,.1f}"
