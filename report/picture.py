"""A figure in a file: .png to paste, .html to look into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ..errors import RequestError
from .figure import Figure, Panel
from .file import require_writable, write_whole
from .png import png_image
from .site.chart import charts, legend, symbols
from .site.frame import Frame, document, file_policy
from .site.grid import values
from .site.links import FileLinks
from .site.markup import joined, tag
from .site.page import SitePage, head, note


def require_picture(path: Path) -> None:
    """Raise RequestError where a picture's suffix names no known format, or it cannot be written, before the work."""
    if path.suffix.lower() not in FORMATS:
        known = " or ".join(FORMATS)
        raise RequestError(f"cannot draw {path}: its suffix is {path.suffix or 'missing'}; end the name in {known}")
    require_writable(path)


def write_picture(path: Path, figure: Figure) -> None:
    """Write a figure in the format of its path's suffix, whole or not at all; RequestError as `require_picture`."""
    require_picture(path)
    write_whole(path, FORMATS[path.suffix.lower()](figure))


NAME = "figure"
TABLE = f"{NAME}-table"


def html_page(figure: Figure) -> str:
    """Return a figure as an HTML document of its own."""
    rows = [
        tag("div", charts(row, f"{NAME}-{place}", TABLE, has_strip=figure.has_strip), class_=_looks(row))
        for place, row in enumerate(_rows(figure.panels))
    ]
    body = joined(
        head(None, figure.title),
        [note(fact) for fact in figure.facts],
        legend(symbols(figure.legend, figure.panels)),
        rows,
        values(figure.grid, "Values", TABLE),
    )
    frame = Frame(links=FileLinks(names=frozenset()), place="", policy=file_policy(), is_bare=True)
    return document(frame, [SitePage(name=NAME, title=figure.title, body=body)], title=figure.title, current=NAME)


def _rows(panels: Iterable[Panel]) -> list[list[Panel]]:
    rows: list[list[Panel]] = [[]]
    for panel in panels:
        if panel.starts_row and rows[-1]:
            rows.append([])
        rows[-1].append(panel)
    return rows


def _looks(row: Sequence[Panel]) -> str:
    if len(row) == 1:
        return "panels is-single"
    return "panels has-names" if any(panel.has_long_labels for panel in row) else "panels"


FORMATS: Mapping[str, Callable[[Figure], str | bytes]] = {".png": png_image, ".html": html_page}
