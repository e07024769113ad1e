"""A figure in a file: .png to paste, .html to look into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import RequestError
from .figure import Figure
from .file import require_writable, write_whole
from .page import html_page
from .png import png_image

FORMATS: Mapping[str, Callable[[Figure], str | bytes]] = {".png": png_image, ".html": html_page}


def require_picture(path: Path) -> None:
    """Check before the work that a picture can be written to a path.

    Raises:
        RequestError: the suffix names no known format, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        known = " or ".join(FORMATS)
        raise RequestError(f"cannot draw {path}: its suffix is {path.suffix or 'missing'}; end the name in {known}")
    require_writable(path)


def write_picture(path: Path, figure: Figure) -> None:
    """Write a figure in the format its path's suffix names; the whole file or nothing.

    Raises:
        RequestError: the suffix names no known format, or the file cannot be written.
    """
    require_picture(path)
    write_whole(path, FORMATS[path.suffix.lower()](figure))
