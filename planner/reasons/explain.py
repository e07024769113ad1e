"""Why a plan decodes as it does: facts for programs, sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

from ..plans.crossing import Crossing, crossings, named
from ..plans.objective import LatencyBound
from ..plans.plan import Plan, PlanCell
from .duration import duration
from .facts import CellFacts, Limit, PublishedShares, cell_facts, chain_acceptance, heading, published_shares
from .sentences import cell_lines

__all__ = ["CellFacts", "Limit", "cell_facts", "chain_acceptance", "explain_cell", "explain_plan", "out_of_reach"]

COLUMNS = ("batch", "context", "how to decode", "tokens/s", "x plain", "limited by")
WORDS = (2, 5)  # columns of words, aligned left


def explain_plan(plan: Plan) -> list[str]:
    """Return the explanation of a plan: all cells as a table, where speculation ends, then cell by cell."""
    lines = [heading(plan)]
    if plan.bound is not None:
        lines.append(f"the fastest that keeps {plan.bound}")
    if plan.new_tokens is not None:
        is_timed = any(cell.reading is not None for cell in plan.cells)
        read = "whose prompts are read first" if is_timed else "without the reading of prompts, which was not timed"
        cached = f", {100 * plan.cached_share:.3g} % of each before" if plan.cached_share and is_timed else ""
        lines.append(f"the fastest for answers of {plan.new_tokens:,} new tokens, {read}{cached}")
    facts = [cell_facts(cell) for cell in plan.cells]
    for block in (_table(facts, plan), _ends(plan), _published(plan)):
        lines += ["", *block] if block else []
    for cell in plan.cells:
        lines += ["", *explain_cell(cell, bound=plan.bound, memory_bytes=plan.device.memory_bytes)]
    return [*lines, "", *_origin(plan)]


def explain_cell(cell: PlanCell, *, bound: LatencyBound | None = None, memory_bytes: int = 0) -> list[str]:
    """Return why a cell decodes as it does, one fact per line; the device's `memory_bytes` are 0 where unknown."""
    return list(cell_lines(cell, bound, memory_bytes))


def out_of_reach(plan: Plan) -> str | None:
    """Return in which cells nothing keeps a plan's latency bound, and what is possible; None where all keep it."""
    missed = [cell for cell in plan.cells if not cell.keeps_bound]
    if not missed or plan.bound is None:
        return None
    least = "; ".join(f"batch {cell.batch}, context {cell.context}: {_at_best(cell)}" for cell in missed)
    kept = [f"batch {cell.batch}, context {cell.context}" for cell in plan.cells if cell.keeps_bound]
    within = f"it is kept at {'; '.join(kept)}" if kept else "it is kept in no cell"
    return (
        f"{plan.bound} cannot be reached in {len(missed)} of {len(plan.cells)} cells ({least}); {within}; "
        "allow more, or plan smaller batches or shorter contexts"
    )


def _at_best(cell: PlanCell) -> str:
    return "not known" if cell.latency_ms is None else f"{duration(cell.latency_ms)} at best"


def _table(facts: Sequence[CellFacts], plan: Plan) -> list[str]:
    rows = [COLUMNS, *(_row(each, cell) for each, cell in zip(facts, plan.cells, strict=True))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    aligned = [
        [
            text.ljust(width) if column in WORDS else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return [f"  {'  '.join(row)}".rstrip() for row in aligned]


def _row(facts: CellFacts, cell: PlanCell) -> tuple[str, ...]:
    missed = "" if cell.keeps_bound else ", breaks the bound"
    return (
        str(facts.batch),
        str(facts.context),
        facts.label,
        f"{cell.prediction.tokens_per_s:,.1f}",
        f"{cell.prediction.speedup_over_plain:.2f}",
        ("-" if facts.drafter is None else facts.limited_by) + missed,
    )


def _ends(plan: Plan) -> list[str]:
    """Return from which batch on plain decoding wins, a line per context; nothing where there is one batch only."""
    if len({cell.batch for cell in plan.cells}) < 2:
        return []
    return ["speculation pays", *(f"  {_end(crossing)}" for crossing in crossings(plan))]


def _end(crossing: Crossing) -> str:
    where = f"at context {crossing.context}:"
    if crossing.last is None:
        return f"{where} at no planned batch"
    if crossing.plain_below:
        plain = named(crossing.plain_below)
        beyond = "" if crossing.batch is None else f", and from a batch of about {crossing.batch:.0f} on"
        return f"{where} at {named(crossing.pays_at)}; plain decoding is faster at {plain}{beyond}"
    if crossing.batch is None:
        return f"{where} at every planned batch, up to {crossing.last}"
    between = f"between the planned batches {crossing.last} and {crossing.first_plain}"
    return f"{where} up to a batch of about {crossing.batch:.0f}, {between}"


def _published(plan: Plan) -> list[str]:
    shares = published_shares(plan)
    return ["published defaults would keep", *(f"  {_kept(each)}" for each in shares)] if shares else []


def _kept(each: PublishedShares) -> str:
    if each.least is None or each.most is None:
        return f"{each.name}: not priced in any cell"
    span = f"{each.least:.2f} to {each.most:.2f}" if each.priced > 1 else f"{each.least:.2f}"
    cells = f"{each.slower_than_plain} of {each.priced} cells"
    beside = f"; slower than plain decoding in {cells}" if each.slower_than_plain else ""
    return f"{each.name}: {span} of the plan's speed{beside}"


def _origin(plan: Plan) -> list[str]:
    origin = plan.provenance
    pruned = f", {origin.pruned:,} cannot win and were not replayed" if origin.pruned else ""
    untried = f", {origin.untried:,} stacks promise less than those that were" if origin.untried else ""
    left_out = f", {len(origin.censored):,} could not be priced" if origin.censored else ""
    return [
        f"{origin.candidates:,} candidates were priced on {origin.texts:,} texts{pruned}{untried}{left_out}",
        *(f"note: {note}" for note in origin.notes),
    ]
