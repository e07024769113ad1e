"""One page before it is put into a frame: a title, what leads to it, and its body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .links import Links, anchor
from .markup import Child, Html, tag


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePage:
    """The page of one name; in a file it is a section of its own."""

    name: str
    title: str
    body: Html

    @property
    def anchor(self) -> str:
        """The id of its element."""
        return anchor(self.name)


def head(eyebrow: Child, title: str, lede: Child = None) -> Html:
    """Return the head of a page: what it belongs to, its title, and one sentence."""
    over = tag("p", eyebrow, class_="eyebrow") if eyebrow is not None else None
    under = tag("p", lede, class_="lede") if lede is not None else None
    return tag("header", over, tag("h1", title), under)


def part(page: str, name: str, title: str, *children: Child) -> Html:
    """Return a part of a page with its heading; `anchor(page)-name` is its id."""
    return tag("section", tag("h2", title), *children, id=f"{anchor(page)}-{name}")


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Return named facts side by side; those without a value are left out."""
    shown = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value not in (None, "")]
    return tag("dl", shown, class_="facts")


def note(*children: Child) -> Html:
    """Return a paragraph that says how to read what follows."""
    return tag("p", *children, class_="note")


def tiles(numbers: Sequence[tuple[str, str, bool]]) -> Html:
    """Return a row of large numbers: (number, of what, whether it asks for attention)."""
    return tag(
        "ul",
        [
            tag("li", tag("b", n), tag("span", what), class_="is-warning" if warns else None)
            for n, what, warns in numbers
        ],
        class_="tiles",
    )


def link(links: Links, name: str, text: Child) -> Html:
    """Return a link to a page, or the text alone where there is no such page."""
    place = links.to(name)
    return tag("span", text) if place is None else tag("a", text, href=place)
