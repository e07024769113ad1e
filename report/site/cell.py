"""The cells of a plan: laid out by batch and context, and each explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ...planner.plans.plan import Plan, PlanCell
from ...planner.reasons.explain import explain_cell
from ...planner.reasons.facts import cell_facts
from ...planner.strategies.naming import name_of
from .kept import DRIFTED, KeptCell
from .links import Links
from .page import render
from .theme import TINTS
from .words import interval, speed, times


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What a round of a cell is made of, what it promises, and why this policy."""

    parts: tuple[tuple[str, str, float, float], ...]  # kind, what, share of the round, milliseconds
    facts: tuple[tuple[str, str | None], ...]
    reasons: tuple[str, ...]


def explained(kept: KeptCell, plan: Plan) -> Explained:
    """Return what explains a cell."""
    promise, shares = kept.cell.prediction, cell_facts(kept.cell)
    return Explained(
        parts=(
            ("verify", "verification", shares.share_verify, promise.verify_ms),
            ("draft", "drafting", shares.share_draft, promise.draft_ms),
            ("host", "host", shares.share_host, promise.host_ms),
        ),
        facts=tuple(_facts(kept)),
        reasons=tuple(explain_cell(kept.cell, bound=plan.bound, memory_bytes=plan.device.memory_bytes)[1:]),
    )


def distance(cell: PlanCell) -> str | None:
    """Return how far the choice is ahead of the runner-up, with its standard error; None without one."""
    if cell.lead is None:
        return None
    return f"{cell.lead.relative:+.1%} \N{PLUS-MINUS SIGN} {cell.lead.error:.1%}".replace("-", "\N{MINUS SIGN}", 1)


def _facts(kept: KeptCell) -> Iterator[tuple[str, str | None]]:
    cell, promise = kept.cell, kept.cell.prediction
    yield "Predicted", f"{speed(promise.tokens_per_s)} tokens/s"
    yield "90 % interval", f"{interval(promise.low, promise.high)} tokens/s"
    yield (
        "Over plain decoding",
        f"{times(promise.speedup_over_plain)}, {promise.speedup_low:.2f} to {promise.speedup_high:.2f}",
    )
    measured = kept.measured_speed
    yield "Measured", None if measured is None else f"{speed(measured)} tokens/s"
    yield "Measured over plain", None if kept.measured_speedup is None else times(kept.measured_speedup)
    if cell.runner_up is not None:
        yield "Runner-up", name_of(cell.runner_up.label, cell.runner_up.drafter)
        yield "Ahead of it by", distance(cell)
    yield "A round yields", f"{promise.tokens_per_round:.2f} tokens per sequence in {promise.round_ms:.2f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A plan's cells by batch and context."""

    batches: list[int]
    contexts: list[int]
    found: dict[tuple[int, int], KeptCell]
    most: float  # speed-up of the fastest


def heat_table(cells: Sequence[KeptCell], links: Links, page: str) -> Markup:
    """Return the table of a plan's cells, each with a link to what explains it."""
    found = {(kept.cell.batch, kept.cell.context): kept for kept in cells}
    heat = Heat(
        batches=sorted({batch for batch, _ in found}),
        contexts=sorted({context for _, context in found}),
        found=found,
        most=max((kept.cell.prediction.speedup_over_plain for kept in cells), default=1.0),
    )
    return render("heat.html", heat=heat, links=links, name=page, tint_of=tint_of, place_of=place_of, drifted=DRIFTED)


def place_of(batch: int, context: int) -> str:
    """Return the name of a cell's part of its page."""
    return f"cell-{batch}-{context}"


def tint_of(speedup: float, most: float) -> int:
    """Return how deep the ground of a cell is: 0 where it is no faster than plain decoding."""
    if speedup <= 1.0 or most <= 1.0:
        return 0
    return min(1 + int((TINTS - 1) * (speedup - 1.0) / (most - 1.0)), TINTS - 1)
