"""Which records of a store a plan comes from, and the plans before and after it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ...db.rows import PlanRow
from ...planner.plans.provenance import SurfaceSource, TraceSource
from .contents import Contents, SurfaceEntry, setup_of
from .links import Links, difference_page
from .words import plain_device


def neighbours(contents: Contents, links: Links, row: PlanRow) -> Iterator[tuple[str, str]]:
    """Yield the pages of a plan's differences to the plans of its setup before and after it, and what to call them."""
    for older, newer in pairwise(contents.versions(setup_of(row))):
        page = difference_page(older.id, newer.id)
        if row.id in (older.id, newer.id) and links.to(page) is not None:
            yield page, f"since plan {older.id}" if newer.id == row.id else f"to plan {newer.id}"


def entry_of(contents: Contents, row: PlanRow, source: SurfaceSource) -> SurfaceEntry | None:
    """Return the surface of the store that priced a plan; None where it is not there."""
    wanted = (source.model, source.role, source.regime, source.dtype)
    for entry in contents.surfaces_of(plain_device(row.device)):
        key = entry.key
        if (key.model, key.role, key.regime, key.dtype) == wanted:
            return entry
    return None


def trace_of(contents: Contents, row: PlanRow, source: TraceSource) -> int | None:
    """Return the newest trace that is older than the plan: what was there when it was made."""
    same = [
        trace.id
        for trace in contents.traces
        if (trace.target, trace.drafter, trace.workload) == (row.target, source.model, row.workload)
        and abs(trace.temperature - row.temperature) < 1e-9
        and trace.created <= row.created
    ]
    return same[-1] if same else None
