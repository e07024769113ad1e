"""HTML that nothing in it can break: every text is escaped unless it was built here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = frozenset({"input", "link", "meta"})


class Html(str):
    """Text that is HTML already; only this module and constants of this package make it."""

    __slots__ = ()


Child = Html | str | int | Iterable["Child"] | None
Attribute = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """Return an element; `name` is known here and never a text of the store."""
    head = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{head}>")
    return Html(f"<{name}{head}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Html:
    """Return children one after the other, texts escaped."""
    return Html("".join(_text(child) for child in children))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_value(value)}"'


def _value(value: str | int | float) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return escape(text, quote=True).replace("\n", "&#10;")


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int):
        return escape(str(child))
    return "".join(_text(each) for each in child)
