"""Plans that are filed under a mark before their device are shown with that device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spectune.db.rows import ENGINE_PLAN, WHAT_IF
from spectune.db.sql.sql_store import SqlStore
from spectune.planner.plans.document import plan_to_json
from spectune.report.site.contents import Contents
from spectune.report.site.device import device_page_of
from spectune.report.site.links import SiteLinks
from spectune.report.site.overview import overview_page
from spectune.report.site.plan import plan_page_of
from spectune.report.site.plans import plans_page
from spectune.report.site.words import engine_of, plain_device

from ..support.site_store import NASTY_DEVICE, filled_store, nasty_plan

LINKS = SiteLinks()
MARKS = (WHAT_IF, ENGINE_PLAN)


@pytest.fixture
def store() -> Iterator[SqlStore]:
    """Return a store whose third plan is a what-if and whose fourth is for an engine, of the same device."""
    with filled_store() as opened:
        for mark in MARKS:
            plan = nasty_plan(2.5)
            opened.add_plan(
                plan_to_json(plan),
                device=f"{mark}{plan.device.fingerprint}",
                device_kind=f"{mark}{plan.device.kind_key}",
                target=plan.target.key,
                workload=f"{plan.workload} (llama.cpp)" if mark == ENGINE_PLAN else plan.workload,
                temperature=plan.temperature,
            )
        yield opened


@pytest.mark.parametrize("mark", ["", *MARKS])
def test_a_plan_s_device_is_the_one_behind_its_mark(mark: str) -> None:
    assert plain_device(f"{mark}cpu-1") == "cpu-1"


def test_a_device_s_page_lists_what_ifs_and_plans_for_engines(store: SqlStore) -> None:
    body = device_page_of(Contents(store), LINKS, NASTY_DEVICE).body
    assert all(f'href="/plans/{number}"' in body for number in (1, 2, 3, 4))


@pytest.mark.parametrize("mark", MARKS)
def test_a_device_is_called_by_its_name_whatever_stands_before_it(store: SqlStore, mark: str) -> None:
    contents = Contents(store)
    assert contents.device_name(f"{mark}{NASTY_DEVICE.fingerprint}") == NASTY_DEVICE.label


def test_the_overview_counts_a_device_s_plans_whoever_follows_them(store: SqlStore) -> None:
    row = overview_page(Contents(store), LINKS).body.split('id="overview-devices"')[-1]
    assert ">4<" in row


@pytest.mark.parametrize("number", [3, 4])
def test_a_plan_s_surfaces_are_linked_under_a_mark_too(store: SqlStore, number: int) -> None:
    contents = Contents(store)
    assert 'href="/surfaces/' in plan_page_of(contents, LINKS, contents.row(number)).body


@pytest.mark.parametrize("page", ["overview", "plans", "plan", "device"])
def test_a_plan_for_an_engine_names_it_and_is_followed_by_no_decoder_of_ours(store: SqlStore, page: str) -> None:
    contents = Contents(store)
    pages = {
        "overview": lambda: overview_page(contents, LINKS),
        "plans": lambda: plans_page(contents, LINKS),
        "plan": lambda: plan_page_of(contents, LINKS, contents.row(4)),
        "device": lambda: device_page_of(contents, LINKS, NASTY_DEVICE),
    }
    body = pages[page]().body
    said = "measured in llama.cpp" if page == "device" else "for llama.cpp; our decoder does not follow it"
    assert body.count(said) == 1
    assert "yes, decoders follow it" not in body


def test_a_guess_that_counts_is_followed_only_where_no_measured_plan_fits(store: SqlStore) -> None:
    contents = Contents(store)
    body = plan_page_of(contents, LINKS, contents.row(3)).body
    assert "yes, among guesses; decoders follow it where no measured plan fits" in body
    assert "yes, decoders follow it" in plan_page_of(contents, LINKS, contents.row(1)).body


@pytest.mark.parametrize(
    ("device", "workload", "engine"),
    [("engine:a", "code (vllm)", "vllm"), ("engine:a", "code", "another engine"), ("a", "code (vllm)", None)],
)
def test_an_engine_stands_behind_the_workload_of_its_plans(device: str, workload: str, engine: str | None) -> None:
    assert engine_of(device, workload) == engine
