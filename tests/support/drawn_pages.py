"""Pages read back: every element with its attributes, and whether all of them are closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}


@dataclass
class Element:
    """One element and the text directly in it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())


@dataclass
class Page(HTMLParser):
    """Every element of a page in the order of the text; `is_whole` if each was closed where it was open."""

    elements: list[Element] = field(default_factory=list)
    is_whole: bool = True

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        self.is_whole &= bool(self._open) and self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1].text += data

    def all(self, tag: str, kind: str | None = None) -> list[Element]:
        """Return the elements of a tag, or only those of a class."""
        return [each for each in self.elements if each.tag == tag and (kind is None or kind in each.classes)]


def parsed(text: str) -> Page:
    """Return a page, read to its end."""
    page = Page()
    page.feed(text)
    page.close()
    page.is_whole &= not page._open
    return page
