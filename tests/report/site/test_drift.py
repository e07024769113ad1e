"""The drift page over time: only speeds that its interval promises something about are drawn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.planner.plans.observation import Observation
from spectune.profiler.records.wire import to_json
from spectune.report.site.contents import Contents
from spectune.report.site.drift import drift_page
from spectune.report.site.links import SiteLinks
from spectune.report.site.words import NONE

from ...support.drawn_pages import Page, parsed
from ...support.site_store import add_plan, nasty_plan, observation

PLAN = nasty_plan(2.5)


def page_of(*observations: Observation) -> Page:
    with SqlStore(resolve_url(":memory:")) as store:
        plan_id = add_plan(store, PLAN)
        for each in observations:
            store.add_observation(plan_id, to_json(each))
        return parsed(str(drift_page(Contents(store), SiteLinks()).body))


def blockless(hour: int, round_ms: float) -> Observation:
    """Return a report of planned rounds without a whole block."""
    made = observation(1, PLAN, hour)
    return replace(made, cells=(replace(made.cells[0], block_tokens_per_s=(), round_ms=round_ms),))


def test_a_report_without_a_whole_block_is_listed_and_not_drawn() -> None:
    crowd = blockless(1, 1e6)  # rounds of other batches near the cell's
    imported = blockless(2, 0.0)  # an engine's counters tell no times
    page = page_of(observation(1, PLAN, 0), crowd, imported)
    assert len(page.all("g", "measured")) == 1
    speeds = [each.text for each in page.all("td")[-12:][3::4]]  # of the last table's three rows
    assert [text == NONE for text in speeds] == [False, True, True]


@pytest.mark.parametrize("years", [0.001, 0.5, 1, 3, 30, 300])
def test_reports_over_any_time_stand_on_an_axis_with_numbers(years: float) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    ended = (began + timedelta(days=365 * years)).isoformat()
    page = page_of(observation(1, PLAN, 0), replace(observation(1, PLAN, 0), began=ended, ended=ended))
    ticks = [each for each in page.elements if each.tag == "text" and each.attributes.get("text-anchor") == "middle"]
    assert 3 <= len(ticks) <= 10
