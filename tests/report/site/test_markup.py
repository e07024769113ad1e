"""HTML built from parts: whatever stands in a text, it stays a text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spectune.report.site.links import FileLinks, SiteLinks, device_page, digest, plan_page
from spectune.report.site.markup import Html, joined, tag

from ...support.drawn_pages import parsed


@given(st.text())
def test_a_text_comes_back_as_it_was(text: str) -> None:
    page = parsed(tag("p", text))
    said = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    assert [each.tag for each in page.elements] == ["p"]
    assert page.elements[0].text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd") == said


@given(st.text())
def test_an_attribute_comes_back_as_it_was_and_adds_none(text: str) -> None:
    (element,) = parsed(tag("p", title=text)).elements
    assert element.attributes == {"title": text}


def test_elements_stay_elements_and_none_is_left_out() -> None:
    assert tag("p", tag("b", "1 < 2"), None, ["a", Html("<i></i>")]) == "<p><b>1 &lt; 2</b>a<i></i></p>"


def test_true_is_a_bare_attribute_and_false_is_none() -> None:
    assert tag("input", hidden=True, checked=False, value=None, aria_label="x", class_="y") == (
        '<input hidden aria-label="x" class="y">'
    )


def test_children_may_be_joined() -> None:
    assert joined("<", Html("<b></b>")) == "&lt;<b></b>"


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
