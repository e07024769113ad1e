"""Colours of the pages: every text and line stands out from what it stands on, for everyone."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from spectune.report.site.cell import tint_of
from spectune.report.site.page import asset
from spectune.report.site.theme import DARK, LIGHT, SHADES, TINTS, ColourScheme, mixed, shade_class

from ..test_palette import contrast, luminance

SCHEMES = pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])


@SCHEMES
def test_every_text_can_be_read_on_the_ground_and_on_sheets(scheme: ColourScheme) -> None:
    texts = (scheme.text, scheme.faint, scheme.accent, scheme.warning)
    assert min(contrast(text, on) for text in texts for on in (scheme.background, scheme.sheet)) >= 4.5  # WCAG 1.4.3


@SCHEMES
def test_every_text_of_a_heat_table_can_be_read_on_every_tint(scheme: ColourScheme) -> None:
    tints = [scheme.tint(step) for step in range(TINTS)]
    assert min(contrast(scheme.text, tint) for tint in tints) >= 4.5
    signs = (scheme.warning, scheme.accent)  # beside words that say the same
    assert min(contrast(sign, tint) for sign in signs for tint in tints) >= 3.0  # WCAG 1.4.11


@SCHEMES
def test_text_on_the_accent_and_on_tips_can_be_read(scheme: ColourScheme) -> None:
    assert contrast(scheme.background, scheme.accent) >= 4.5
    assert contrast(scheme.background, scheme.text) >= 4.5


@SCHEMES
def test_every_line_and_part_of_a_bar_stands_out(scheme: ColourScheme) -> None:
    parts = (scheme.accent, scheme.second, scheme.third)
    drawn = (*parts, *(scheme.shade(step) for step in range(SHADES)))
    assert min(contrast(each, scheme.background) for each in drawn) >= 3.0  # WCAG 1.4.11
    assert min(abs(luminance(first) - luminance(second)) for first, second in pairwise(parts)) > 0.03


def test_no_text_is_written_in_the_colour_of_a_line() -> None:
    assert not re.search(r"text{[^}]*currentColor|\.end{[^}]*currentColor", asset("style.css"))


@SCHEMES
def test_deeper_tints_are_further_from_the_ground_one_after_the_other(scheme: ColourScheme) -> None:
    steps = np.diff([luminance(scheme.tint(step)) for step in range(TINTS)])
    assert (steps > 0.0).all() or (steps < 0.0).all()


def test_faster_cells_have_deeper_grounds_and_plain_ones_none() -> None:
    tints = [tint_of(speedup, 3.0) for speedup in (0.9, 1.0, 1.1, 2.0, 3.0)]
    assert tints[:2] == [0, 0]
    assert tints == sorted(tints)
    assert tints[-1] == TINTS - 1


def test_a_mixture_of_half_lies_in_the_middle() -> None:
    assert mixed("#000000", "#204060", 0.5) == "#102030"
    assert mixed("#102030", "#ffffff", 0.0) == "#102030"


def test_places_along_a_family_of_lines_have_classes_from_first_to_last() -> None:
    assert [shade_class(place) for place in (0.0, 1.0, None)] == ["shade-0", f"shade-{SHADES - 1}", "shade-text"]
    assert all(f".shade-{step}{{" in asset("style.css") for step in range(SHADES))


def test_the_style_knows_light_dark_the_reader_s_choice_and_paper() -> None:
    for part in (
        "prefers-color-scheme:dark",
        "[data-theme=dark]",
        "[data-theme=light]",
        "@media print",
        "prefers-reduced-motion",
    ):
        assert part in asset("style.css")
