"""An engine's counters on stdout: acceptance by position, chains by length, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .report import Table, facts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..planner.plans.observation import Observation
    from ..tuning.engines.counters import Counted, CountedAcceptance


def counted_facts(found: Counted) -> dict[str, Any]:
    """Return what a file holds as JSON values."""
    acceptance = [{**facts_of(one), "by_length": list(one.by_length)} for one in found.acceptance]
    return {**facts_of(found), "acceptance": acceptance}


def counted_shown(found: Counted) -> Iterator[Table | str]:
    """Yield what a file holds, for people."""
    for one in found.acceptance:
        yield _acceptance_table(one)
        yield from (f"note: {note}" for note in one.notes)
    if found.steps:
        rows = [(step.tokens, step.step_ms) for step in found.steps]
        yield Table(title="steps of all sequences", columns=("tokens", "ms"), rows=rows)


def counted_table(observations: Sequence[Observation]) -> Table:
    """Return what was imported of a plan: its acceptance, and where that is from."""
    from ..planner.strategies.naming import name_of

    rows = [
        (
            cell.batch,
            cell.context,
            name_of(cell.policy, cell.drafter),
            cell.rounds,
            cell.tokens / cell.rounds,
            " ".join(f"{100.0 * count / cell.rounds:.1f}" for count in cell.accepted_at_least),
            ", ".join((seen.source, seen.ended, *seen.events[:1])),
        )
        for seen in observations
        for cell in seen.cells
    ]
    columns = ("batch", "context", "how to decode", "rounds", "tokens a round", "unconditional % by position", "from")
    return Table(title="what engines counted", columns=columns, rows=rows)


def _acceptance_table(one: CountedAcceptance) -> Table:
    step = "" if one.step_ms is None else f", {one.step_ms:.2f} ms a round"
    rounds = "" if one.drafts is None else f", {one.drafts} rounds"
    before = (1.0, *one.by_position)
    return Table(
        title=f"{one.about}: {one.tokens_per_round:.3f} tokens a round{step}{rounds}",
        columns=("position", "unconditional %", "given those before %", "chain of so many: tokens a round"),
        rows=[
            (position, 100.0 * rate, 100.0 * rate / before[position - 1] if before[position - 1] else None, length)
            for position, (rate, length) in enumerate(zip(one.by_position, one.by_length, strict=True), start=1)
        ],
    )
