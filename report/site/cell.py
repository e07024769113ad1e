"""One cell of a plan, explained: what a round is made of, why this policy, and what would change the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...planner.plans.plan import Plan, PlanCell
from ...planner.reasons.explain import explain_cell
from ...planner.reasons.facts import cell_facts
from ...planner.strategies.naming import name_of
from .kept import DRIFTED, VERDICT_SIGNS, KeptCell
from .links import Links, anchor
from .markup import Child, Html, tag
from .page import facts
from .theme import TINTS
from .words import interval, speed, status, times, verdict

BAR = 100.0  # width of the bar, in its own units


def cell_details(kept: KeptCell, plan: Plan, page: str) -> Html:
    """Return what explains a cell, folded under its choice."""
    cell = kept.cell
    name = name_of(cell.policy.code, cell.drafter)
    summary = tag(
        "summary",
        tag("span", f"batch {cell.batch:,}, context {cell.context:,}", class_="where"),
        tag("span", name, class_="grow"),
        tag("span", times(cell.prediction.speedup_over_plain), class_="strong"),
        verdict(kept.verdict),
    )
    left = tag("div", _round(cell), facts(_facts(kept)))
    inside = tag("div", tag("div", left, _reasons(cell, plan), class_="columns"), class_="inside")
    return tag("details", summary, inside, id=f"{anchor(page)}-{place_of(cell.batch, cell.context)}")


def distance(cell: PlanCell) -> str | None:
    """Return how far the choice is ahead of the runner-up, with its standard error; None without one."""
    if cell.lead is None:
        return None
    return f"{cell.lead.relative:+.1%} \N{PLUS-MINUS SIGN} {cell.lead.error:.1%}".replace("-", "\N{MINUS SIGN}", 1)


def _facts(kept: KeptCell) -> Iterator[tuple[str, Child]]:
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


def _round(cell: PlanCell) -> Html:
    promise, shares = cell.prediction, cell_facts(cell)
    parts = [
        ("verify", "verification", shares.share_verify, promise.verify_ms),
        ("draft", "drafting", shares.share_draft, promise.draft_ms),
        ("host", "host", shares.share_host, promise.host_ms),
    ]
    bars, left = [], 0.0
    for kind, _, share, _ms in parts:
        bars.append(tag("rect", class_=f"bar-{kind}", x=f"{BAR * left:.2f}", y=0, width=f"{BAR * share:.2f}", height=4))
        left += share
    box = tag("svg", bars, class_="bar", viewBox=f"0 0 {BAR:g} 4", preserveAspectRatio="none", aria_hidden="true")
    said = [tag("li", _swatch(kind), f"{what} {share:.0%}, {ms:.2f} ms") for kind, what, share, ms in parts if ms > 0.0]
    return tag("div", tag("h3", "A round"), box, tag("ul", said, class_="parts"))


def _swatch(kind: str) -> Html:
    square = tag("rect", class_=f"bar-{kind}", width=12, height=12, rx=3)
    return tag("svg", square, viewBox="0 0 12 12", aria_hidden="true")


def _reasons(cell: PlanCell, plan: Plan) -> Html:
    lines = explain_cell(cell, bound=plan.bound, memory_bytes=plan.device.memory_bytes)[1:]
    items = [tag("li", line.strip(), class_="is-deeper" if line.startswith("    ") else None) for line in lines]
    return tag("div", tag("h3", "Why"), tag("ul", items, class_="reasons"))


def heat_table(cells: Sequence[KeptCell], links: Links, page: str) -> Html:
    """Return the table of a plan's cells, each with a link to what explains it."""
    batches = sorted({kept.cell.batch for kept in cells})
    contexts = sorted({kept.cell.context for kept in cells})
    found = {(kept.cell.batch, kept.cell.context): kept for kept in cells}
    most = max((kept.cell.prediction.speedup_over_plain for kept in cells), default=1.0)
    heads = [tag("th", f"batch {batch:,}", scope="col") for batch in batches]
    rows = [
        tag(
            "tr",
            tag("th", f"context {context:,}", scope="row"),
            [_cell(found.get((batch, context)), links, page, most) for batch in batches],
        )
        for context in contexts
    ]
    caption = "Predicted speed over plain decoding, the policy that reaches it, and what was measured"
    corner = tag("td")
    whole = tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", tag("tr", corner, heads)),
        tag("tbody", rows),
        class_="heat",
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def place_of(batch: int, context: int) -> str:
    """Return the name of a cell's part of its page."""
    return f"cell-{batch}-{context}"


def tint_of(speedup: float, most: float) -> int:
    """Return how deep the ground of a cell is: 0 where it is no faster than plain decoding."""
    if speedup <= 1.0 or most <= 1.0:
        return 0
    return min(1 + int((TINTS - 1) * (speedup - 1.0) / (most - 1.0)), TINTS - 1)


def _cell(kept: KeptCell | None, links: Links, page: str, most: float) -> Html:
    if kept is None:
        return tag("td", tag("span", "not planned", class_="faint"))
    cell, promise = kept.cell, kept.cell.prediction
    name = name_of(cell.policy.code, cell.drafter)
    inside = [
        tag("b", times(promise.speedup_over_plain)),
        tag("span", name),
        tag("span", f"{speed(promise.tokens_per_s)} tokens/s"),
        tag("span", f"90 %: {interval(promise.low, promise.high)}"),
        _measured(kept),
        None if cell.keeps_bound else status("breaks the bound", "warning"),
    ]
    place = links.within(page, place_of(cell.batch, cell.context))
    kind = "is-plain" if cell.drafter is None else f"tint-{tint_of(promise.speedup_over_plain, most)}"
    return tag("td", tag("a", inside, href=place), class_=kind)


def _measured(kept: KeptCell) -> Html | None:
    if kept.measured_speedup is None:
        return None if kept.verdict == "unseen" else verdict(kept.verdict)
    said = f"measured {times(kept.measured_speedup)}{', drifted' if kept.verdict in DRIFTED else ''}"
    return status(said, VERDICT_SIGNS[kept.verdict])
