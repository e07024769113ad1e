"""Where a plan comes from, and what happened to it since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...db.rows import PlanRow
from ...planner.plans.plan import Plan
from ...planner.plans.provenance import SurfaceSource, TraceSource
from .contents import Contents, SurfaceEntry, setup_of
from .grid import number, table, words
from .links import Links, difference_page, plan_page, surface_page, trace_page
from .markup import Child, Html, tag
from .page import link, note, part
from .words import NONE, count, moment, plain_device, status


def origin_part(contents: Contents, links: Links, row: PlanRow, plan: Plan) -> Html:
    """Return what a plan was computed from, with the hashes that the store has of it."""
    origin, name = plan.provenance, plan_page(row.id)
    said = note(
        f"{count(origin.candidates, 'candidate')} priced on {count(origin.texts, 'text')}, {origin.pruned:,} more "
        f"cannot win and were not replayed; spectune {origin.spectune}, ",
        moment(origin.created),
        ".",
    )
    notes = [tag("li", text) for text in origin.notes]
    return part(
        name,
        "origin",
        "What it rests on",
        said,
        _surfaces(contents, links, row, plan),
        _traces(contents, links, row, plan),
        _sources(contents, row),
        tag("ul", notes, class_="reasons") if notes else None,
    )


def events_part(contents: Contents, links: Links, row: PlanRow) -> Html:
    """Return what happened to a plan, and the plans before and after it."""
    name = plan_page(row.id)
    items = [tag("li", "made, version ", f"{row.version}", ", ", moment(row.created))]
    for event in contents.store.plan_events(row.id):
        why = f": {event.reason}" if event.reason else ""
        items.append(
            tag("li", tag("span", event.action, class_="strong"), f" by {event.by}{why}, ", moment(event.created))
        )
    others = list(_others(contents, links, row))
    more = tag("p", "Differences: ", _listed(others)) if others else None
    return part(name, "events", "What happened to it", tag("ol", items, class_="timeline"), more)


def _others(contents: Contents, links: Links, row: PlanRow) -> Iterator[Html]:
    own = contents.versions(setup_of(row))
    place = [each.id for each in own].index(row.id)
    for older, newer in ((place - 1, place), (place, place + 1)):
        if older >= 0 and newer < len(own):
            other = own[older if newer == place else newer]
            words_said = f"{'since' if other.id < row.id else 'to'} plan {other.id}"
            if links.to(difference_page(own[older].id, own[newer].id)) is not None:
                yield link(links, difference_page(own[older].id, own[newer].id), words_said)


def _listed(items: list[Html]) -> Iterator[Child]:
    for place, item in enumerate(items):
        yield ", " if place else None
        yield item


def _surfaces(contents: Contents, links: Links, row: PlanRow, plan: Plan) -> Html:
    entries = contents.surfaces_of(plain_device(row.device))
    rows = [
        (
            _surface_link(contents, links, entries, source),
            source.role,
            source.regime,
            source.dtype,
            f"{source.measurements:,}",
            NONE if source.relative_error is None else f"{source.relative_error:.1%}",
        )
        for source in plan.provenance.surfaces
    ]
    columns = [
        words("Model"),
        words("Role"),
        words("Regime"),
        words("Number format"),
        number("Cells"),
        number("Error of a cell"),
    ]
    return (
        table("Latency surfaces that priced it", columns, rows, is_titled=True)
        if rows
        else note("It names no surface.")
    )


def _surface_link(contents: Contents, links: Links, entries: Sequence[SurfaceEntry], source: SurfaceSource) -> Html:
    text = contents.model_name(source.model)
    entry = next((entry for entry in entries if _is_same(entry, source)), None)
    return tag("span", text) if entry is None else link(links, surface_page(entry.slug), text)


def _is_same(entry: SurfaceEntry, source: SurfaceSource) -> bool:
    key = entry.key
    return (key.model, key.role, key.regime, key.dtype) == (
        source.model,
        source.role,
        source.regime,
        source.dtype,
    )


def _traces(contents: Contents, links: Links, row: PlanRow, plan: Plan) -> Html:
    rows = [
        (
            _trace_link(contents, links, row, source),
            f"{source.prompts:,}",
            f"{source.positions:,}",
            f"{source.seed}",
        )
        for source in plan.provenance.traces
    ]
    columns = [words("Drafter"), number("Texts"), number("Positions"), number("Seed")]
    return table("Traces that were replayed", columns, rows, is_titled=True) if rows else note("It names no trace.")


def _trace_link(contents: Contents, links: Links, row: PlanRow, source: TraceSource) -> Html:
    """Return a link to the newest trace that is older than the plan: what was there when it was made."""
    same = [
        trace.id
        for trace in contents.traces
        if (trace.target, trace.drafter, trace.workload) == (row.target, source.model, row.workload)
        and abs(trace.temperature - row.temperature) < 1e-9
        and trace.created <= row.created
    ]
    return link(links, trace_page(same[-1]), source.drafter) if same else tag("span", source.drafter)


def _sources(contents: Contents, row: PlanRow) -> Html | None:
    sources = contents.store.plan_sources(row.id)
    if not sources:
        return note("The store kept no hashes of what it was computed from: it was made before stores did.")
    rows = [
        (
            source.name or source.kind,
            source.kind,
            tag("code", source.content_hash[:16]),
            status("in this store", "good") if source.is_held else status("not in this store", "open"),
        )
        for source in sources
    ]
    columns = [words("Source"), words("Kind"), words("Hash"), words("Kept")]
    return table("Exactly these records, by their content", columns, rows, is_titled=True)
