"""Tables of the pages: each has a caption, its headings say what they head, and a narrow screen scrolls it alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..figure import Grid
from .markup import Child, Html, joined, tag

LONG = 30  # characters of words that may be broken into lines; shorter ones stay on theirs
TAGS = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its heading, and whether it holds words instead of numbers."""

    title: str
    is_words: bool = False


def words(title: str) -> Column:
    """Return a column of words."""
    return Column(title=title, is_words=True)


def number(title: str) -> Column:
    """Return a column of numbers."""
    return Column(title=title)


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Child]],
    *,
    id: str | None = None,
    is_titled: bool = False,
) -> Html:
    """Return a table whose rows begin with their heading; the caption is seen if `is_titled`, else only heard."""
    kinds = ["words" if column.is_words else None for column in columns]
    head = tag("tr", [tag("th", c.title, scope="col", class_=kind) for c, kind in zip(columns, kinds, strict=True)])
    body = [tag("tr", [_cell(place, value, kind) for place, (value, kind) in _placed(row, kinds)]) for row in rows]
    seen = None if is_titled else "unseen"
    whole = tag("table", tag("caption", caption, class_=seen), tag("thead", head), tag("tbody", body), id=id)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def values(grid: Grid, caption: str, id: str) -> Html:
    """Return the values of a figure, folded away at first."""
    columns = [
        Column(title=title, is_words=any(not _is_number(row[place]) for row in grid.rows))
        for place, title in enumerate(grid.columns)
    ]
    summary = tag("summary", f"All {len(grid.rows):,} values as a table")
    return tag("details", summary, table(caption, columns, grid.rows, id=id), class_="values")


def _placed(row: Sequence[Child], kinds: Sequence[str | None]) -> enumerate[tuple[Child, str | None]]:
    return enumerate(zip(row, kinds, strict=True))


def _cell(place: int, value: Child, kind: str | None) -> Html:
    inside = joined(value)
    looks = f"{kind} is-long" if kind and len(TAGS.sub("", inside)) > LONG else kind
    if place == 0:
        return tag("th", inside, scope="row", class_=looks)
    return tag("td", inside, class_=looks)


def _is_number(text: str) -> bool:
    return not text.strip("0123456789.,%-e\N{MINUS SIGN}")


def under(value: Child, below: Child) -> Html:
    """Return a value with a smaller one below it; the smaller one alone is left out."""
    return tag("span", value, None if below is None else tag("span", below, class_="beside"))
