"""The pages' colours; texts keep a contrast of 4.5:1 on their background, tints included, lines and bars 3:1."""

from __future__ import annotations

from dataclasses import dataclass

from ..palette import DARK as DARK_LINES
from ..palette import LIGHT as LIGHT_LINES
from ..palette import Theme as Lines

SHADES = 12  # steps that the colours of ordered lines are rounded to
TINTS = 10  # steps of the heat table


@dataclass(frozen=True, slots=True, kw_only=True)
class ColourScheme:
    """The colours of light or of dark pages, as #rrggbb."""

    background: str
    sheet: str  # what tables and charts stand on
    text: str
    faint: str
    rule: str
    accent: str
    warning: str
    second: str  # the part of a bar beside the accent's
    third: str
    deepest_tint: float  # share of the accent in the last tint
    lines: Lines

    def tint(self, step: int) -> str:
        """Return the ground of a heat table's cell: the sheet at step 0, more accent up to TINTS - 1."""
        return mixed(self.sheet, self.accent, self.deepest_tint * step / (TINTS - 1))

    def shade(self, step: int) -> str:
        """Return the colour of a line: the first of its family at step 0, the last at SHADES - 1."""
        return self.lines.shade(step / (SHADES - 1))


LIGHT = ColourScheme(
    background="#faf9f7",
    sheet="#ffffff",
    text="#1b1e23",
    faint="#5a616b",
    rule="#e4e3df",
    accent="#0a6970",
    warning="#a8440b",
    second="#a9690f",
    third="#8a8f98",
    deepest_tint=0.34,
    lines=LIGHT_LINES,
)
DARK = ColourScheme(
    background="#111316",
    sheet="#181b1f",
    text="#e9ebee",
    faint="#a0a7b1",
    rule="#2b3037",
    accent="#63c5c9",
    warning="#f2a661",
    second="#c98a35",
    third="#737b87",
    deepest_tint=0.34,
    lines=DARK_LINES,
)


def mixed(first: str, second: str, share: float) -> str:
    """Return two colours mixed, `share` of the second."""
    pairs = ((int(first[at : at + 2], 16), int(second[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(one + share * (other - one)):02x}" for one, other in pairs)


def shade_class(place: float | None) -> str:
    """Return the class of a line's colour at a place 0..1 of its family; that of text where it belongs to none."""
    return "shade-text" if place is None else f"shade-{round(min(max(place, 0.0), 1.0) * (SHADES - 1))}"
