"""All pages of a store as one file that needs nothing else: sections instead of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

from markupsafe import Markup

from ...db.rows import PlanRow, TraceRow
from ...db.store import Store
from ...errors import SpectuneError
from ...planner.plans.plan import Plan
from .contents import Contents, SurfaceEntry, setup_of
from .device import device_page_of
from .difference import difference_page_of
from .drift import drift_page
from .frame import Frame, document, file_policy
from .links import (
    DRIFT,
    HOME,
    PLANS,
    FileLinks,
    device_page,
    difference_page,
    plan_page,
    surface_page,
    trace_page,
)
from .overview import overview_page
from .page import SitePage, fault_page, render
from .plan import plan_page_of
from .plans import plans_page
from .surface import surface_page_of
from .trace import trace_page_of

MOST_PLANS = 20  # of different setups, newest first
MOST_SURFACES = 40
MOST_TRACES = 40


def whole_report(store: Store, plan_id: int | None = None, *, now: datetime | None = None) -> Markup:
    """Return the report of a store, or of one plan and what it rests on (or NoPageError), as one HTML document."""
    contents = Contents(store)
    written = f"{now or datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    chosen = _Chosen(contents, plan_id)
    links = FileLinks(names=frozenset(chosen.names()))
    frame = Frame(links=links, place=store.url, written=written, policy=file_policy())
    pages = list(chosen.pages(links))
    title = "Report" if plan_id is None else f"Plan {plan_id}"
    return document(frame, [_with_contents(pages), *pages[1:]], title=title, current=pages[0].name)


class _Chosen:
    def __init__(self, contents: Contents, plan_id: int | None) -> None:
        self._contents = contents
        self._is_of_one = plan_id is not None
        self._rows = list(self._counting()) if plan_id is None else [contents.row(plan_id)]
        plan = None if plan_id is None else contents.plan(plan_id)
        self._devices = [
            device
            for device in contents.devices.values()
            if plan is None or device.fingerprint == plan.device.fingerprint
        ]
        self._surfaces = self._of_note([*self._readable()] if plan is None else [plan])
        self._traces = [row for row in contents.traces if plan is None or _replayed(row, plan)]
        self._traces = self._traces[-MOST_TRACES:]
        self._pairs = list(self._differences())

    def names(self) -> Iterator[str]:
        if not self._is_of_one:
            yield from (HOME, DRIFT, PLANS)
        yield from (plan_page(row.id) for row in self._rows)
        yield from (difference_page(older.id, newer.id) for older, newer in self._pairs)
        yield from (surface_page(entry.slug) for entry in self._surfaces)
        yield from (trace_page(row.id) for row in self._traces)
        yield from (device_page(device.fingerprint) for device in self._devices)

    def pages(self, links: FileLinks) -> Iterator[SitePage]:
        def made(name: str, page_of: Callable[..., SitePage], *about: object) -> SitePage:
            try:
                return page_of(self._contents, links, *about)
            except SpectuneError as error:  # one damaged record is no reason to show none of the others
                return fault_page(links, name, name, what="cannot be shown", why=str(error))

        if not self._is_of_one:
            yield made(HOME, overview_page)
        yield from (made(plan_page(row.id), plan_page_of, row) for row in self._rows)
        yield from (
            made(difference_page(older.id, newer.id), difference_page_of, older, newer) for older, newer in self._pairs
        )
        if not self._is_of_one:
            yield made(DRIFT, drift_page)
        yield from (made(surface_page(entry.slug), surface_page_of, entry) for entry in self._surfaces)
        yield from (made(trace_page(row.id), trace_page_of, row) for row in self._traces)
        yield from (made(device_page(device.fingerprint), device_page_of, device) for device in self._devices)
        if not self._is_of_one:
            yield made(PLANS, plans_page)

    def _counting(self) -> Iterator[PlanRow]:
        for setup in list(self._contents.setups)[:MOST_PLANS]:
            row = self._contents.counting(setup)
            if row is not None:
                yield row

    def _readable(self) -> Iterator[Plan]:
        for row in self._rows:
            with suppress(SpectuneError):  # its page says what is wrong
                yield self._contents.plan(row.id)

    def _of_note(self, plans: list[Plan]) -> list[SurfaceEntry]:
        """Return the surfaces that price a plan of the file, then those timed last; of one plan, its own alone."""
        pricing = [entry for entry in self._contents.surfaces if any(_prices(entry, plan) for plan in plans)]
        others = [] if self._is_of_one else [entry for entry in self._contents.surfaces if entry not in pricing]
        newest = [sorted(each, key=lambda entry: entry.newest, reverse=True) for each in (pricing, others)]
        return [*newest[0], *newest[1]][:MOST_SURFACES]

    def _differences(self) -> Iterator[tuple[PlanRow, PlanRow]]:
        for row in self._rows:
            for older, newer in pairwise(self._contents.versions(setup_of(row))):
                if newer.id == row.id:
                    yield older, newer


def _prices(entry: SurfaceEntry, plan: Plan) -> bool:
    key = entry.key
    priced = {(source.model, source.role, source.regime, source.dtype) for source in plan.provenance.surfaces}
    return key.device == plan.device.fingerprint and (key.model, key.role, key.regime, key.dtype) in priced


def _replayed(row: TraceRow, plan: Plan) -> bool:
    drafters = {source.model for source in plan.provenance.traces}
    is_same = (row.target, row.workload) == (plan.target.key, plan.workload)
    return is_same and row.drafter in drafters and abs(row.temperature - plan.temperature) < 1e-9


def _with_contents(pages: list[SitePage]) -> SitePage:
    first, *others = pages
    if not others:
        return first
    return replace(first, body=first.body + render("contents.html", page=first, others=others))
