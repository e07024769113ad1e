"""A figure as one HTML file: it needs no network, follows the reader's light or dark, and lists its values below."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .figure import Figure, Grid
from .script import SCRIPT
from .style import STYLE
from .svg import panel_svg, symbol_svg, width_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"  # nothing is ever fetched
PER_REM = 12.1  # of a panel's width: how large it is drawn where there is room


def html_page(figure: Figure) -> str:
    """Return a figure as an HTML document of its own."""
    title = escape(figure.title)
    facts = "".join(f"<p>{escape(fact)}</p>" for fact in figure.facts)
    legend = "".join(f"<li>{symbol_svg(symbol)}{escape(meaning)}</li>" for symbol, meaning in figure.legend)
    width = width_of(figure)
    panels = "\n".join(
        panel_svg(panel, f"panel-{place}", has_strip=figure.has_strip, width=width)
        for place, panel in enumerate(figure.panels)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<div class="facts">{facts}</div>
<ul class="legend">{legend}</ul>
<div class="panels" style="--columns:{figure.columns};--widest:{width / PER_REM:.3g}rem">
{panels}
</div>
<h2>Values</h2>
<div class="table" tabindex="0" role="region" aria-label="Values">
{_table(figure.grid)}
</div>
</main>
<div id="tip" role="tooltip" hidden></div>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _table(grid: Grid) -> str:
    is_words = [any(not _is_number(row[place]) for row in grid.rows) for place in range(len(grid.columns))]
    head = _row("th", grid.columns, is_words)
    body = "\n".join(_row("td", row, is_words) for row in grid.rows)
    return f"<table>\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _row(tag: str, texts: Sequence[str], is_words: Sequence[bool]) -> str:
    kinds = [' class="words"' if words else "" for words in is_words]
    cells = (f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, texts, strict=True))
    return f"<tr>{''.join(cells)}</tr>"


def _is_number(text: str) -> bool:
    return not text.strip("0123456789.,%-e")
