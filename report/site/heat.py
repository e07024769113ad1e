"""The cells of a plan as a table of batches and contexts: the faster over plain decoding, the deeper the ground."""

from __future__ import annotations

from collections.abc import Sequence

from ...planner.strategies.naming import name_of
from .kept import DRIFTED, VERDICT_SIGNS, KeptCell
from .links import Links
from .markup import Html, tag
from .theme import TINTS
from .words import interval, speed, status, times, verdict


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
