"""One page: a title, and a body that a template makes; in a file it is one section."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from ...planner.strategies.naming import name_of
from . import links, theme, words
from .kept import VERDICT_SIGNS, VERDICT_WORDS
from .links import Links, anchor

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePage:
    """The page of one name."""

    name: str
    title: str
    body: Markup

    @property
    def anchor(self) -> str:
        """The id of its element."""
        return anchor(self.name)


class OneLine(Extension):
    """Joins the lines of an HTML template: beside tags and statements without a space, between words with one."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Return the source on one line; styles are left as they are."""
        if name is None or not name.endswith(".html"):
            return source
        lines = re.sub(r"\s*\n\s*", "\n", source.strip())
        return re.sub(r"(?<=>|\})\n|\n(?=<|\{)", "", lines).replace("\n", " ")


def render(template: str, **values: object) -> Markup:
    """Return a template filled with values; every text is escaped unless it is Markup."""
    return Markup(_environment().get_template(template).render(values))


def page_of(template: str, links: Links, name: str, title: str, **values: object) -> SitePage:
    """Return the page that a template makes of values."""
    return SitePage(name=name, title=title, body=render(template, links=links, name=name, title=title, **values))


def fault_page(
    links: Links, name: str, title: str, *, what: str, why: str, over: Sequence[tuple[str, str]] = ()
) -> SitePage:
    """Return the page of a record that cannot be shown; `over` it are names of pages and what they are called."""
    return page_of("fault.html", links, name, title, over=over, what=what, why=why)


@cache
def asset(name: str) -> Markup:
    """Return a style or a script of the pages as they include it."""
    if name.endswith(".css"):
        return render(name)
    return Markup((FOLDER / name).read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        extensions=[OneLine],
        finalize=lambda value: "" if value is None else value,
    )
    made.filters |= {"at": "{:.1f}".format, "lines": _lines, "thousands": "{:,}".format}
    made.globals |= {each.__name__: each for each in (*links.NAMED, *words.SAID, theme.shade_class, name_of)}
    made.globals |= {name: getattr(links, name) for name in ("HOME", "PLANS", "DRIFT", "JOBS")}
    made.globals |= {name: getattr(theme, name) for name in ("LIGHT", "DARK", "SHADES", "TINTS")}
    made.globals |= {
        "asset": asset,
        "NONE": words.NONE,
        "TO": words.TO,
        "signs": VERDICT_SIGNS,
        "verdicts": VERDICT_WORDS,
    }
    return made


def _lines(text: str) -> Markup:
    """Return a text of several lines for an attribute."""
    return Markup("&#10;").join(text.split("\n"))
