"""Pages of a store: whole, escaped, linked, and every chart told in a table too."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from spectune.db.sql.sql_store import SqlStore
from spectune.db.sql.tables import DoorTable, TraceTable
from spectune.db.url import resolve_url
from spectune.engines.drafter import listed_drafters
from spectune.engines.table import ENGINES
from spectune.errors import RequestError
from spectune.planner.plans.crossing import Crossing
from spectune.profiler.records.wire import to_json
from spectune.report.site import device, overview, use, whole
from spectune.report.site.contents import Contents, NoPageError
from spectune.report.site.device import device_page_of
from spectune.report.site.difference import difference_page_of
from spectune.report.site.drift import drift_page
from spectune.report.site.frame import Frame, document
from spectune.report.site.jobs import jobs_page
from spectune.report.site.links import SiteLinks
from spectune.report.site.overview import overview_page
from spectune.report.site.page import SitePage
from spectune.report.site.plan import _tiles, plan_page_of
from spectune.report.site.plans import plans_page
from spectune.report.site.refusal import refusal_page, sign_in_page
from spectune.report.site.surface import surface_page_of
from spectune.report.site.trace import trace_page_of
from spectune.report.site.whole import whole_report
from spectune.report.site.words import NONE, moment

from ...support.drawn_pages import Page as Parsed
from ...support.drawn_pages import parsed
from ...support.site_store import (
    NASTY,
    NASTY_DEVICE,
    WORKLOAD,
    add_plan,
    cells,
    filled_store,
    nasty_plan,
    observation,
    stalled_validation,
    surface_key,
    undated_observation,
)
from ...support.synthetic import TARGET

LINKS = SiteLinks()
FRAME = Frame(links=LINKS, place="a store", nonce="n")


@pytest.fixture(scope="module")
def store() -> Iterator[SqlStore]:
    with filled_store() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(store: SqlStore) -> dict[str, SitePage]:
    contents = Contents(store)
    newer, older = contents.newest_plans(9)
    found = [
        overview_page(contents, LINKS),
        plans_page(contents, LINKS),
        drift_page(contents, LINKS),
        jobs_page(contents, LINKS, []),
        difference_page_of(contents, LINKS, older, newer),
        *(plan_page_of(contents, LINKS, row) for row in (older, newer)),
        *(device_page_of(contents, LINKS, device) for device in contents.devices.values()),
        *(surface_page_of(contents, LINKS, entry) for entry in contents.surfaces),
        *(trace_page_of(contents, LINKS, row) for row in contents.traces),
    ]
    return {page.name: page for page in found}


@pytest.fixture(scope="module")
def documents(store: SqlStore, pages: dict[str, SitePage]) -> dict[str, str]:
    others = [refusal_page(LINKS, NASTY, NASTY), sign_in_page(NASTY, NASTY)]
    every = [*pages.values(), *others]
    found = {page.name: str(document(FRAME, [page], title=page.title, current=page.name)) for page in every}
    return {**found, "the file": str(whole_report(store)), "one plan": str(whole_report(store, 1))}


@pytest.fixture(scope="module")
def read(documents: dict[str, str]) -> dict[str, Parsed]:
    return {name: parsed(text) for name, text in documents.items()}


def test_every_element_is_closed_where_it_was_opened(read: dict[str, Parsed]) -> None:
    assert [name for name, page in read.items() if not page.is_whole] == []


def test_names_of_the_store_make_no_element_and_no_attribute(read: dict[str, Parsed]) -> None:
    for name, page in read.items():
        assert len(page.all("script")) == 2, name
        assert not page.all("b") or all("alert" not in each.text for each in page.all("b")), name
        assert [key for each in page.elements for key in each.attributes if key.startswith("on")] == [], name


def test_names_of_the_store_are_shown_as_they_are(read: dict[str, Parsed]) -> None:
    (title,) = (each.text for each in read["plans/1"].all("h1"))
    assert title.startswith(f"large {NASTY} on Abacus {NASTY}")
    assert any(each.text == WORKLOAD for each in read["traces/1"].all("dd"))


def test_ids_are_distinct(read: dict[str, Parsed]) -> None:
    for name, page in read.items():
        ids = Counter(each.attributes["id"] for each in page.elements if "id" in each.attributes)
        assert [each for each, times in ids.items() if times > 1] == [], name


def test_every_link_of_the_site_leads_to_a_page_or_a_part_of_one(
    read: dict[str, Parsed], pages: dict[str, SitePage]
) -> None:
    ids = {
        f"/{'' if name == 'overview' else name}": {
            e.attributes["id"] for e in read[name].elements if "id" in e.attributes
        }
        for name in pages
    }
    for name in pages:
        for link in read[name].all("a"):
            if "download" in link.attributes:
                continue
            place, _, part = link.attributes["href"].partition("#")
            assert (place or f"/{name}".replace("/overview", "/")) in ids, (name, place)
            assert not part or part in ids[place or f"/{name}".replace("/overview", "/")], (
                name,
                link.attributes["href"],
            )


@pytest.mark.parametrize("name", ["the file", "one plan"])
def test_every_link_of_the_file_leads_to_a_part_of_it(read: dict[str, Parsed], name: str) -> None:
    ids = {each.attributes["id"] for each in read[name].elements if "id" in each.attributes}
    places = {each.attributes["href"] for each in read[name].all("a") if "download" not in each.attributes}
    assert places
    assert [place for place in places if place[0] != "#" or place[1:] not in ids] == []


def test_the_file_fetches_nothing_and_runs_only_its_own_scripts(
    documents: dict[str, str], read: dict[str, Parsed]
) -> None:
    page = read["the file"]
    fetched = [each for each in page.elements if {"src", "srcset", "data", "action"} & set(each.attributes)]
    (icon,) = page.all("link")
    (policy,) = [each for each in page.all("meta") if each.attributes.get("http-equiv")]
    assert fetched == []
    assert icon.attributes["href"].startswith("data:")
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-\S+'; script-src 'sha256-\S+' 'sha256-\S+'; img-src data:; "
        r"base-uri 'none'; form-action 'none'",
        policy.attributes["content"],
    )
    assert not re.findall(r"@import|url\(", documents["the file"].split("</style>")[0])


def test_no_element_has_a_style_of_its_own_which_the_policy_would_drop(read: dict[str, Parsed]) -> None:
    assert [name for name, page in read.items() if any("style" in each.attributes for each in page.elements)] == []


def test_every_chart_names_the_table_that_lists_its_values(read: dict[str, Parsed]) -> None:
    for name, page in read.items():
        tables = {each.attributes.get("id") for each in page.all("table")}
        charts = [each for each in page.all("svg") if each.attributes.get("role") == "group"]
        assert [chart for chart in charts if chart.attributes["aria-details"] not in tables] == [], name
        ids = {each.attributes["id"]: each.tag for each in page.elements if "id" in each.attributes}
        named = [[ids[part] for part in chart.attributes["aria-labelledby"].split()] for chart in charts]
        assert named == [["title", "desc"]] * len(charts), name


def test_every_picture_without_words_is_hidden_from_who_cannot_see_it(read: dict[str, Parsed]) -> None:
    pictures = [each for page in read.values() for each in page.all("svg") if "role" not in each.attributes]
    assert {each.attributes.get("aria-hidden") for each in pictures} == {"true"}


def test_every_table_has_a_caption_and_headings_that_say_what_they_head(read: dict[str, Parsed]) -> None:
    for name, page in read.items():
        assert len(page.all("table")) == len(page.all("caption")) == len(page.all("thead")), name
        assert {each.attributes.get("scope") for each in page.all("th")} <= {"row", "col"}, name
        assert all(each.text for each in page.all("caption")), name


def test_every_region_that_scrolls_can_be_reached_and_has_a_name(read: dict[str, Parsed]) -> None:
    regions = [each for page in read.values() for each in page.all("div", "scroll")]
    assert regions
    assert all(each.attributes["tabindex"] == "0" and each.attributes["aria-label"] for each in regions)


def test_the_first_link_skips_to_the_content(read: dict[str, Parsed]) -> None:
    for page in read.values():
        first = page.all("a")[0]
        assert first.attributes["href"] == "#content"
        assert page.all("main")[0].attributes["id"] == "content"


def test_there_is_one_main_heading_a_page(read: dict[str, Parsed], pages: dict[str, SitePage]) -> None:
    assert {len(read[name].all("h1")) for name in pages} == {1}


def test_every_timed_cell_stands_in_a_table(read: dict[str, Parsed], pages: dict[str, SitePage]) -> None:
    (name, *_) = [name for name in pages if name.startswith("surfaces/")]
    assert len(read[name].all("tr")) == 1 + len(cells())
    assert len(read[name].all("g", "failed")) == 1


def test_raw_repeats_are_drawn_beside_their_median(read: dict[str, Parsed], pages: dict[str, SitePage]) -> None:
    (name, *_) = [name for name in pages if name.startswith("surfaces/")]
    repeats = read[name].all("path", "repeats")[1].attributes["data-repeats"]  # the first is the legend's
    assert "data-repeats" not in read[name].all("path", "repeats")[0].attributes or len(repeats.split()) == 4


def test_a_plan_shows_every_cell_with_its_speed_up_policy_and_measured_one(read: dict[str, Parsed]) -> None:
    heat = read["plans/1"]
    shown = [each.text for each in heat.all("b") if re.fullmatch(r"\d+\.\d\d×", each.text)]
    assert len(shown) == 3
    assert len(heat.all("details")) == len(ENGINES) + 3 + 1  # every engine, every cell, and the values of the charts


def test_a_plan_says_up_to_which_batch_it_pays_and_with_which_command_every_engine_runs_it(
    pages: dict[str, SitePage],
) -> None:
    body = pages["plans/1"].body
    tiles = re.findall(r"<li><b>(up to batch [\d,]+|nowhere)</b>", body)
    assert len(tiles) == len({cell.context_tokens for cell in cells()})
    part = body.partition('-use"')[2].partition("</section>")[0]
    assert part.count("<details>") == len(ENGINES)
    for engine in ENGINES:
        assert f'<span class="where">{engine}' in part
    assert "vllm serve" in part and "llama-server --model" in part


def test_commands_name_models_without_opening_what_lies_at_their_paths(tmp_path: Path) -> None:
    for name in ("target", "small"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("no JSON")
    plan = nasty_plan(2.5)
    drafters = tuple((name, replace(model, location=str(tmp_path / "small"))) for name, model in plan.drafters)
    plan = replace(plan, target=replace(plan.target, location=str(tmp_path / "target")), drafters=drafters)
    found = {one.engine: one for one in use.uses_of(plan)}
    assert found["vllm"].command.startswith("vllm serve target ") and '"model": "small"' in found["vllm"].command
    assert all(str(tmp_path) not in " ".join((one.command, one.why_not, *one.notes)) for one in found.values())


def test_a_drafter_beside_its_target_is_refused_where_its_files_are_not_read() -> None:
    plan = nasty_plan(2.5)
    (trace,) = plan.provenance.traces
    traces = (replace(trace, prefix_exact=False),)
    drafters = listed_drafters(replace(plan, provenance=replace(plan.provenance, traces=traces)))
    assert "spectune export" in drafters[trace.drafter].refused
    assert listed_drafters(plan)[trace.drafter].refused == ""


def test_tiles_say_where_speculation_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        Crossing(context=64, last=None, first_plain=1, batch=None),
        Crossing(context=256, last=4, first_plain=8, batch=5.7, plain_below=(1,)),
        Crossing(context=900, last=8, first_plain=None, batch=None),
    )
    monkeypatch.setattr("spectune.report.site.plan.crossings", lambda _: found)
    assert list(_tiles(nasty_plan(2.5))) == [
        ("nowhere", "speculation pays at context 64"),
        ("up to batch 6", "speculation pays at context 256, except at batch 1"),
        ("up to batch 8", "speculation pays at context 900; larger batches are not planned"),
    ]


def test_an_engine_that_cannot_run_a_plan_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RequestError("no version of it was recorded")

    monkeypatch.setattr(use, "export_plan", refuse)
    assert {one.why_not for one in use.uses_of(nasty_plan(2.5))} == {"no version of it was recorded"}


def test_what_happened_to_a_plan_is_told_in_order(read: dict[str, Parsed]) -> None:
    told = [each.text for each in read["plans/1"].all("li") if "version" in each.text or "ada" in each.text]
    assert told[0].startswith("made, version")
    assert f"by ada {NASTY}: because {NASTY}" in told[1]


def test_a_plan_that_drifted_is_named_in_the_overview(documents: dict[str, str]) -> None:
    assert "drifted, slower" in documents["overview"]
    assert "as promised" in documents["drift"]
    assert re.search(r"\d\.\d\d promised", documents["drift"])  # tokens a round


def test_a_report_of_one_plan_holds_what_it_rests_on_alone(store: SqlStore, read: dict[str, Parsed]) -> None:
    names = [each.attributes["id"] for each in read["one plan"].all("article")]
    kinds = Counter(name.split("-")[0] for name in names)
    assert kinds == {"plans": 1, "surfaces": 2, "traces": 1, "devices": 1}


def test_a_report_of_a_plan_that_is_not_there_is_refused(store: SqlStore) -> None:
    with pytest.raises(NoPageError, match="there is no plan 99"):
        whole_report(store, 99)


def test_a_plan_that_cannot_be_read_says_so_on_its_page() -> None:
    with filled_store() as store:
        broken = store.add_plan("{}", device="d", device_kind="k", target="t", workload="w", temperature=0.0)
        contents = Contents(store)
        assert "cannot be read" in plan_page_of(contents, LINKS, contents.row(broken)).body
        assert "cannot be read" in overview_page(Contents(store), LINKS).body


def test_an_empty_store_has_an_overview() -> None:
    with SqlStore(resolve_url(":memory:")) as store:
        assert parsed(str(whole_report(store))).is_whole


def test_a_surface_of_failures_alone_lists_them() -> None:
    with filled_store() as store:
        key = surface_key("prefill", "0" * 16)
        store.add_measurements(key, [each for each in cells() if each.failure])
        contents = Contents(store)
        (entry,) = [each for each in contents.surfaces if each.key.role == "prefill"]
        page = parsed(str(surface_page_of(contents, LINKS, entry).body))
    assert page.is_whole
    assert len(page.all("tr")) == 2


def test_a_retired_setup_is_told_and_not_followed() -> None:
    with filled_store() as store:
        store.retire_plan(1, "ada", "")
        assert "every plan is retired" in overview_page(Contents(store), LINKS).body


def test_a_later_plan_of_the_same_setup_leads_to_the_differences(pages: dict[str, SitePage]) -> None:
    assert 'href="/plans/1/diff/2"' in pages["plans/1"].body
    assert 'href="/plans/1/diff/2"' in pages["plans"].body


def test_plans_of_two_setups_both_count() -> None:
    with filled_store() as store:
        add_plan(store, nasty_plan(2.0, workload="another"))
        assert overview_page(Contents(store), LINKS).body.count('class="setup"') == 2


def test_what_was_kept_damaged_or_elsewhere_breaks_no_page_and_is_told() -> None:
    plan = nasty_plan(2.5)
    with filled_store() as store:
        store.add_observation(1, undated_observation(1, plan))
        store.add_observation(1, to_json(replace(observation(1, plan, 0), device="another board")))
        store.add_validation(1, stalled_validation(1, plan))
        assert parsed(str(whole_report(store))).is_whole
        contents = Contents(store)
        body = plan_page_of(contents, LINKS, contents.row(1)).body
    assert "1 report of decoders left out: of another device or number format." in body
    assert "1 report of decoders cannot be read. 1 validation cannot be read." in body


@pytest.mark.parametrize(
    ("drops", "said"),
    [
        ((False, False), "Both decode alike, and neither promises clearly more."),
        (
            (True, False),
            "Both decode alike where both have a cell, and neither promises clearly more; 1 cell was added.",
        ),
        (
            (False, True),
            "Both decode alike where both have a cell, and neither promises clearly more; 1 cell was removed.",
        ),
    ],
)
def test_the_first_sentence_about_two_plans_tells_cells_that_one_of_them_has(
    drops: tuple[bool, bool], said: str
) -> None:
    with SqlStore(resolve_url(":memory:")) as store:
        for drops_last in drops:
            add_plan(store, nasty_plan(2.5, drops_last=drops_last))
        contents = Contents(store)
        body = difference_page_of(contents, LINKS, contents.row(1), contents.row(2)).body
    assert f'<p class="lede">{said}</p>' in body


def damage_the_trace(session: Session) -> None:
    session.add(DoorTable())  # which only a prune opens
    session.flush()
    session.execute(update(TraceTable).values(document="{}"))
    session.execute(delete(DoorTable))


def test_one_page_that_cannot_be_made_leaves_the_file_s_others_whole() -> None:
    with filled_store() as store:
        store._write(damage_the_trace)
        page = parsed(str(whole_report(store)))
    titles = [each.text for each in page.all("h1")]
    assert page.is_whole and "traces/1" in titles and "Overview" in titles


def test_the_file_holds_the_surfaces_that_price_its_plans_and_those_timed_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "MOST_SURFACES", 3)
    with filled_store() as store:
        elsewhere = [replace(surface_key("verify", TARGET.key), device=name) for name in ("a", "b")]
        for key in (*elsewhere, elsewhere[0]):  # the first is timed again, last
            store.add_measurements(key, cells())
        names = [each.attributes["id"] for each in parsed(str(whole_report(store))).all("article")]
        own = {f"surfaces-{entry.slug}" for entry in Contents(store).surfaces if entry.key.device != "b"}
    assert {name for name in names if name.startswith("surfaces")} == own


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00", "yesterday", ""])
def test_a_text_that_is_no_moment_in_utc_stays_as_it_is(text: str) -> None:
    assert moment(text) == f"<span>{text or NONE}</span>"


def test_a_moment_without_a_zone_is_utc_wherever_the_service_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert "2026-01-31 12:00 UTC" in moment("2026-01-31T12:00:00")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_overview_says_of_no_setup_that_it_did_not_look_into_that_its_plan_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with filled_store() as store:  # whose plan has drifted
        for number in range(2):
            add_plan(store, nasty_plan(2.0, workload=f"another {number}"))
        assert "drifted, slower" in overview_page(Contents(store), LINKS).body
        monkeypatch.setattr(overview, "MOST_SETUPS", 2)
        body = overview_page(Contents(store), LINKS).body
    assert "<b>0</b><span>drifted among the newest 2 setups</span>" in body
    assert "No plan that counts among the newest 2 setups was seen to leave what it promised." in body


def test_a_device_s_page_counts_timings_and_the_plans_that_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MOST_PLANS", 1)
    with filled_store() as store:
        body = device_page_of(Contents(store), LINKS, NASTY_DEVICE).body
    assert f"2 latency surfaces, {2 * len(cells())} timings" in body
    assert "1 older plan not shown." in body


def test_jobs_that_are_left_out_are_counted(store: SqlStore) -> None:
    assert "3 older jobs not shown." in jobs_page(Contents(store), LINKS, [], older=3).body
