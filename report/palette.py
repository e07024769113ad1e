"""Colours for lines that have an order: from warm to deep on paper, from violet to yellow on a dark screen.

Lightness runs one way, for colour blindness and grey prints. The contrast is 3:1, too little for text.
"""

from __future__ import annotations

from dataclasses import dataclass

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours of one background, as #rrggbb."""

    background: str
    text: str
    faint_text: str
    rule: str
    ramp: tuple[str, ...]  # anchors of the lines' colours, first to last

    def shade(self, place: float | None) -> str:
        """Return the colour at a place along the ramp, 0..1; that of text where there is none."""
        if place is None:
            return self.text
        at = min(max(place, 0.0), 1.0) * (len(self.ramp) - 1)
        left = min(int(at), len(self.ramp) - 2)
        mixed = zip(_rgb(self.ramp[left]), _rgb(self.ramp[left + 1]), strict=True)
        red, green, blue = (round(first + (at - left) * (second - first)) for first, second in mixed)
        return f"#{red:02x}{green:02x}{blue:02x}"


LIGHT = Theme(
    background="#ffffff",
    text="#1c1e21",
    faint_text="#5f656d",
    rule="#e4e6ea",
    ramp=("#e96242", "#c83f7f", "#7b2c9c", "#201a74"),
)
DARK = Theme(
    background="#14161a",
    text="#e9ebee",
    faint_text="#a0a6af",
    rule="#2a2e35",
    ramp=("#9a5bd0", "#d9598f", "#f38f57", "#f6dc6b"),
)


def _rgb(colour: str) -> Rgb:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
