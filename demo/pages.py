"""The demo's page for people, one screen: what was measured, chosen and delivered."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..planner.plans.plan import Plan
from ..planner.strategies.naming import name_of
from ..profiler.records.surface import LatencySurface
from ..tuning.profile import Profile
from .contest import PLAN
from .records import CellOutcome, DemoOutcome, DemoRow

WIDTH = 100  # columns
DASH = "-"


def profile_page(profile: Profile) -> RenderableType:
    """Return where it ran, what a forward costs, and how often each drafter is right."""
    libraries = ", ".join(f"{name} {version}" for name, version in profile.device.libraries if name == "torch")
    lines = [("device", f"{profile.device.label}, {libraries}")]
    lines.append(
        ("target", f"{profile.identities.target.parameters / 1e6:.1f} M parameters, {_forwards(profile.verify)}")
    )
    for trace in profile.traces:
        if trace.drafter_name not in profile.drafts:  # it copies from the text
            continue
        size = profile.identities.drafters[trace.drafter_name].parameters / 1e6
        right = f"first choice right in {trace.rank_acceptance()[0]:.0%}"
        forwards = _forwards(profile.drafts[trace.drafter_name])
        lines.append((trace.drafter_name, f"{size:.1f} M parameters, {forwards}, {right}"))
    return _facts(lines)


def plan_page(plan: Plan) -> RenderableType:
    """Return what was chosen."""
    lines = []
    for cell in plan.cells:
        promise = cell.prediction
        times = f"{promise.speedup_over_plain:.2f} x plain ({promise.speedup_low:.2f} to {promise.speedup_high:.2f})"
        predicted = "" if cell.drafter is None else f": predicted {times}"
        lines.append((f"plan, batch {cell.batch}", f"{name_of(cell.policy.code, cell.drafter)}{predicted}"))
    return _facts(lines)


def outcome_page(outcome: DemoOutcome) -> RenderableType:
    """Return predicted against measured, row by row, and how the plan fared."""
    verdict = "yes" if outcome.greedy_identical else "NO"
    ties = sum(row.near_ties or 0 for row in outcome.rows)
    own = f"output is the target's own in fp32: {verdict} ({ties} near-ties); {outcome.seconds:.0f} s in all"
    title = "Tokens/s of all sequences, measured in turns on prompts the plan has not seen"
    return Group(Text(f"\n{title}", style="bold"), _rows(outcome), *map(_verdict, outcome.cells), Text(own))


def _facts(lines: list[tuple[str, str]]) -> RenderableType:
    said = (textwrap.fill(f"{name:<15}{words}", WIDTH, subsequent_indent=" " * 15) for name, words in lines)
    return Text("\n".join(said))


def _forwards(surface: LatencySurface) -> str:
    return ", ".join(_forward(surface, batch) for batch in surface.batches) + " ms a forward"


def _forward(surface: LatencySurface, batch: int) -> str:
    context = surface.contexts(batch)[-1]
    fed = [m for m in surface.measurements if (m.batch, m.context_tokens, m.failure) == (batch, context, None)]
    return f"{min(fed, key=lambda m: m.tokens).median_ms:.2f}" + (f" (batch {batch})" if batch > 1 else "")


def _rows(outcome: DemoOutcome) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("batch", justify="right")
    table.add_column("how to decode")
    for name in ("predicted", "measured", "x plain", "a round"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in outcome.cells:
        for row in (row for row in outcome.rows if row.batch == cell.batch):
            table.add_row(*_row(row, cell), style="bold green" if row.name == PLAN else None)
    return table


def _row(row: DemoRow, cell: CellOutcome) -> Iterator[str]:
    plain = cell.measured_tokens_per_s / cell.speedup_over_plain
    yield str(row.batch)
    yield row.name if row.policy is None or row.name == PLAN else row.policy  # the plan's is told above
    yield _number(row.predicted_tokens_per_s, 0)
    yield _number(row.measured_tokens_per_s, 0)
    yield _number(row.measured_tokens_per_s / plain, 2)
    yield _number(row.tokens_per_round, 2)


def _verdict(cell: CellOutcome) -> RenderableType:
    covered = "inside" if cell.is_covered else "outside"
    interval = f"{cell.interval[0]:,.0f} to {cell.interval[1]:,.0f}"
    return Text(
        f"batch {cell.batch}: {cell.speedup_over_plain:.2f} x plain, {cell.speedup_over_generate:.2f} x transformers; "
        f"prediction off by {cell.prediction_error:.1%}, {covered} {interval}"
    )


def _number(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:,.{digits}f}"
