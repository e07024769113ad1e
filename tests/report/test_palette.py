"""Colours that can be told from their background and from each other by everyone."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.report.palette import DARK, LIGHT, Theme

PLACES = np.linspace(0.0, 1.0, 25).tolist()
THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb. Source: WCAG 2.2, definition of relative luminance."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(first: str, second: str) -> float:
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@THEMES
def test_every_line_stands_out_from_its_background(theme: Theme) -> None:
    assert min(contrast(theme.shade(place), theme.background) for place in PLACES) >= 3.0  # WCAG 1.4.11


@THEMES
def test_every_text_can_be_read(theme: Theme) -> None:
    assert min(contrast(text, theme.background) for text in (theme.text, theme.faint_text)) >= 4.5  # WCAG 1.4.3


@THEMES
def test_lightness_runs_one_way_so_that_order_shows_without_colour(theme: Theme) -> None:
    steps = np.diff([luminance(theme.shade(place)) for place in PLACES])
    assert (steps > 0.0).all() or (steps < 0.0).all()


def test_a_shade_between_two_anchors_is_their_mixture() -> None:
    theme = Theme(
        background="#ffffff", text="#000000", faint_text="#000000", rule="#000000", ramp=("#000000", "#204060")
    )
    assert [theme.shade(place) for place in (0.0, 0.5, 1.0, None)] == ["#000000", "#102030", "#204060", "#000000"]
