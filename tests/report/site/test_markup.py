"""HTML made by templates: whatever stands in a text, it stays a text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spectune.report.site.links import FileLinks, SiteLinks, device_page, digest, plan_page
from spectune.report.site.page import OneLine, render

from ...support.drawn_pages import parsed


@given(st.text())
def test_a_text_comes_back_as_it_was(text: str) -> None:
    page = parsed(render("fault.html", links=SiteLinks(), over=(), title=text, what="", why=""))
    said = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    (title,) = page.all("h1")
    assert page.is_whole
    assert title.text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd") == said


@given(st.text())
def test_an_attribute_comes_back_as_it_was_and_adds_none(text: str) -> None:
    page = parsed(render("sign-in.html", fault="", where=text))
    (element,) = (each for each in page.all("input") if each.attributes.get("name") == "next")
    assert element.attributes == {"type": "hidden", "name": "next", "value": text}


def test_lines_of_a_template_are_joined_beside_tags_and_apart_between_words() -> None:
    source = "<p>\n  one\n  two <b>three</b>\n  {% if a %}\n  four\n  {% endif %}\n</p>\n"
    joined = OneLine.preprocess(None, source, "a.html")  # type: ignore[arg-type]  # it reads nothing of itself
    assert joined == "<p>one two <b>three</b>{% if a %}four{% endif %}</p>"


@given(st.text())
def test_a_device_s_page_has_a_plain_name_whatever_its_fingerprint(text: str) -> None:
    name = device_page(text).removeprefix("devices/")
    assert name.isascii()
    assert name.isalnum()


def test_names_are_told_apart_however_their_parts_are_cut() -> None:
    assert digest("ab", "c") != digest("a", "bc")


def test_a_file_links_only_to_what_is_in_it() -> None:
    links = FileLinks(names=frozenset({plan_page(1)}))
    assert links.to(plan_page(1)) == "#plans-1"
    assert links.within(plan_page(1), "cell-1-64") == "#plans-1-cell-1-64"
    assert links.to(plan_page(2)) is None
    assert SiteLinks().to(plan_page(2)) == "/plans/2"
