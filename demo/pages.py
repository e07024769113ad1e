"""The demo's pages for people: tables of what was measured, chosen and delivered."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..planner.plans.plan import Plan
from ..planner.reasons.explain import explain_plan
from ..profiler.records.acceptance import AcceptanceTrace
from ..profiler.records.measurement import Measurement
from ..profiler.records.surface import LatencySurface
from ..tuning.profile import Profile
from .contest import PLAN
from .records import CellOutcome, DemoOutcome, Row

BAR = 24  # characters of the longest latency bar
RANKS = 4  # shown of each drafter
DASH = "-"


def device_page(profile: Profile) -> RenderableType:
    """Return where it ran."""
    device = profile.device
    libraries = ", ".join(f"{name} {version}" for name, version in device.libraries)
    return Group(_title("Device"), Text(f"  {device.label}\n  {libraries}"))


def latency_page(profile: Profile) -> RenderableType:
    """Return what one forward costs by tokens fed, target and drafters side by side."""
    surfaces = {"target": profile.verify, **profile.drafts}
    pages: list[RenderableType] = [_title("One forward, in milliseconds")]
    for batch in profile.verify.batches:
        pages.append(_latencies(surfaces, batch))
    return Group(*pages)


def acceptance_page(profile: Profile) -> RenderableType:
    """Return how often the target's next token is a drafter's first, second, ... choice."""
    table = Table("drafter", "parameters", *(f"rank {rank + 1}" for rank in range(RANKS)), "positions", box=None)
    for trace in profile.traces:
        table.add_row(*_acceptance(trace, profile.identities.drafters[trace.drafter_name].parameters))
    return Group(_title("The target's next token among each drafter's best"), table)


def plan_page(plan: Plan) -> RenderableType:
    """Return what was chosen and why."""
    return Group(_title("Plan"), Text("\n".join(f"  {line}" for line in explain_plan(plan))))


def outcome_page(outcome: DemoOutcome) -> RenderableType:
    """Return predicted against measured, row by row, and how the plan fared."""
    pages: list[RenderableType] = [_title("Measured side by side, on prompts the plan has not seen (tokens/s)")]
    for cell in outcome.cells:
        pages.append(_rows(cell, [row for row in outcome.rows if row.batch == cell.batch]))
    verdict = "yes" if outcome.greedy_identical else "NO"
    ties = sum(row.near_ties or 0 for row in outcome.rows)
    pages.append(Text(f"  output is the target's own in fp32: {verdict}; near-ties counted: {ties}"))
    pages.append(Text(f"  {outcome.seconds:.0f} s in all"))
    return Group(*pages)


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _latencies(surfaces: dict[str, LatencySurface], batch: int) -> RenderableType:
    context = surfaces["target"].contexts(batch)[-1]
    cells = {
        name: {m.tokens: m.median_ms for m in surface.measurements if _is_at(m, batch, context)}
        for name, surface in surfaces.items()
    }
    longest = max(cells["target"].values())
    table = Table("tokens", *surfaces, "", box=None, title=f"batch {batch}, context {context}", title_justify="left")
    for tokens, ms in sorted(cells["target"].items()):
        others = [f"{cells[name][tokens]:.2f}" if tokens in cells[name] else DASH for name in list(surfaces)[1:]]
        table.add_row(str(tokens), f"{ms:.2f}", *others, "█" * max(1, round(BAR * ms / longest)))
    return table


def _is_at(measurement: Measurement, batch: int, context: int) -> bool:
    return (measurement.batch, measurement.context_tokens, measurement.failure) == (batch, context, None)


def _acceptance(trace: AcceptanceTrace, parameters: int) -> Iterable[str]:
    shares = trace.rank_acceptance()
    ranks = (f"{share:.1%}" for share in shares[:RANKS])
    return [trace.drafter_name, f"{parameters / 1e6:.1f} M", *ranks, str(trace.positions)]


def _rows(cell: CellOutcome, rows: list[Row]) -> RenderableType:
    columns = ("", "policy", "drafter", "predicted", "measured", "per round", "replayed")
    table = Table(*columns, box=None, title=f"batch {cell.batch}", title_justify="left")
    for row in rows:
        style = "bold green" if row.name == PLAN else None
        table.add_row(
            row.name,
            row.policy or DASH,
            ", ".join(row.drafters) or DASH,
            _number(row.predicted_tokens_per_s, 0),
            _number(row.measured_tokens_per_s, 0),
            _number(row.tokens_per_round, 3),
            _number(row.replayed_tokens_per_round, 3),
            style=style,
        )
    covered = "inside" if cell.is_covered else "outside"
    summary = (
        f"  the plan: {cell.speedup_over_plain:.2f}x plain decoding, {cell.speedup_over_generate:.2f}x transformers; "
        f"prediction off by {cell.prediction_error:.1%}, {covered} its 90 % interval "
        f"[{cell.interval[0]:.0f}, {cell.interval[1]:.0f}]\n"
        f"  its rounds keep {cell.tokens_per_round:.2f} tokens of these prompts, "
        f"{cell.predicted_tokens_per_round:.2f} were predicted\n"
    )
    return Group(table, Text(summary))


def _number(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}"
