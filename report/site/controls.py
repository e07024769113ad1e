"""Choices above charts: which batch, which contexts, and how the axes are spaced; a script shows and obeys them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..axis import Axis
from ..figure import Panel
from .markup import Html, tag

OTHER = {True: "linear", False: "logarithmic"}  # by whether the usual axis is logarithmic


def controls(place: str, panels: Sequence[Panel]) -> Html:
    """Return the choices for panels of one kind, in the element of that id; hidden until the script runs."""
    return tag("form", list(_groups(place, panels)), class_="controls", data_panels=place, hidden=True)


def _groups(place: str, panels: Sequence[Panel]) -> Iterator[Html]:
    if len(panels) > 1:
        choices = [("all", "", True), *((panel.title, panel.title, False) for panel in panels)]
        yield _group("Show", "panel", "radio", choices)
    lines = list(dict.fromkeys(line.label for panel in panels for line in panel.lines if line.label))
    if len(lines) > 1:
        yield _group(panels[0].label_title.capitalize(), "line", "checkbox", [(each, each, True) for each in lines])
    for side, title, axis, other in (
        ("y", "Time", panels[0].y, panels[0].other_y),
        ("x", "Tokens", panels[0].x, panels[0].other_x),
    ):
        if other is not None:
            yield _group(title, side, "radio", _spacings(axis))


def _spacings(axis: Axis) -> list[tuple[str, str, bool]]:
    return [(OTHER[not axis.is_log], "usual", True), (OTHER[axis.is_log], "other", False)]


def _group(title: str, name: str, kind: str, choices: Sequence[tuple[str, str, bool]]) -> Html:
    labels = [
        tag("label", tag("input", type=kind, name=name, value=value, checked=is_chosen), tag("span", text))
        for text, value, is_chosen in choices
    ]
    return tag("fieldset", tag("legend", title), labels)
