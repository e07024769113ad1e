"""A figure in a file: .png to paste, .html to look into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..errors import RequestError
from .figure import Figure, Panel
from .file import require_writable, write_whole
from .png import png_image
from .site.chart import charts, symbols
from .site.frame import Frame, document, file_policy
from .site.links import FileLinks
from .site.page import page_of


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


def html_page(figure: Figure) -> str:
    """Return a figure as a whole HTML document."""
    links = FileLinks(names=frozenset())
    rows = _rows(figure.panels)
    page = page_of(
        "figure.html", links, "figure", figure.title, figure=figure, rows=rows, charts=charts, symbols=symbols
    )
    frame = Frame(links=links, place="", policy=file_policy(), is_bare=True)
    return document(frame, [page], title=figure.title, current=page.name)


def _rows(panels: Iterable[Panel]) -> list[list[Panel]]:
    rows: list[list[Panel]] = [[]]
    for panel in panels:
        if panel.starts_row and rows[-1]:
            rows.append([])
        rows[-1].append(panel)
    return rows


FORMATS: Mapping[str, Callable[[Figure], str | bytes]] = {".png": png_image, ".html": html_page}
