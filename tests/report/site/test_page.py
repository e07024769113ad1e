"""The HTML page of a figure: whole, self-contained, and readable without a mouse or a screen."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from spectune.report.picture import html_page
from spectune.report.surface import surface_figure

from ...support.drawn_pages import Page, parsed
from ...support.synthetic import surface
from ..test_surface import CELLS, SURFACE

NASTY = '<script>alert("x")</script> & "quoted"'


@pytest.fixture(scope="module")
def text() -> str:
    return html_page(surface_figure(SURFACE, device=NASTY, model=NASTY))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return parsed(text)


def test_every_element_is_closed(page: Page) -> None:
    assert page.is_whole


def test_every_cell_is_one_mark(page: Page) -> None:
    shapes = Counter(mark.attributes["aria-label"].splitlines()[0] for mark in page.all("g", "mark"))
    assert shapes == Counter(f"batch {c.batch}, context {c.context_tokens}, tokens {c.tokens}" for c in CELLS)


def test_every_mark_is_a_picture_with_words(page: Page) -> None:
    assert {mark.attributes["role"] for mark in page.all("g", "mark")} == {"img"}


def test_every_chart_has_a_title_and_a_description_that_name_it(page: Page) -> None:
    charts = [svg for svg in page.all("svg") if "aria-labelledby" in svg.attributes]
    names = [svg.attributes["aria-labelledby"].split() for svg in charts]
    ids = {each.attributes["id"]: each.tag for each in page.elements if "id" in each.attributes}
    assert [[ids[name] for name in pair] for pair in names] == [["title", "desc"]] * 3


def test_ids_are_distinct(page: Page) -> None:
    ids = [each.attributes["id"] for each in page.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched(text: str, page: Page) -> None:
    assert not re.findall(r"@import|url\(", text)
    assert not [each for each in page.elements if {"src", "srcset", "data", "action"} & set(each.attributes)]
    assert {each.attributes["href"].partition(":")[0] for each in page.elements if "href" in each.attributes} == {
        "#content",
        "data",
    }
    (policy,) = [meta for meta in page.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"].startswith("default-src 'none'")
    assert "unsafe" not in policy.attributes["content"]


def test_names_are_text_whatever_stands_in_them(page: Page) -> None:
    assert len(page.all("script")) == 2
    assert page.all("h1")[0].text == f"{NASTY}: what one verify forward costs"
    assert page.all("p")[0].text == f"on {NASTY}"


def test_the_table_lists_every_cell(page: Page) -> None:
    assert len(page.all("tr")) == 1 + len(CELLS)


def places(page: Page) -> list[tuple[float, float]]:
    """Return where the marks of a page lie in their charts."""
    found = [each.attributes["transform"] for each in page.all("g") if "data-at" in each.attributes]
    return [(float(x), float(y)) for x, y in (re.findall(r"-?[\d.]+", each) for each in found)]


def test_marks_lie_inside_their_chart(page: Page) -> None:
    assert all(0 < x < 460 and 0 < y < 330 for x, y in places(page))
    assert len(places(page)) == len(CELLS)


def test_the_higher_of_two_times_is_drawn_higher() -> None:
    one = surface("m", "verify", lambda b, c, n: float(n), batches=(1,), contexts=(2,), tokens=(1, 4))
    low, high = places(parsed(html_page(surface_figure(one, device="d", model="m"))))
    assert high[0] > low[0] and high[1] < low[1]


def test_panels_fill_their_rows_and_one_may_start_its_own() -> None:
    figure = surface_figure(SURFACE, device="d", model="m")
    assert figure.places == ((0, 0), (0, 1), (0, 2))
    first, second, third = figure.panels
    apart = replace(figure, panels=(first, replace(second, starts_row=True), third))
    assert apart.places == ((0, 0), (1, 0), (1, 1))
    assert [len(parsed(html_page(each)).all("div", "panels")) for each in (figure, apart)] == [1, 2]
