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
    """Raise RequestError where a picture's suffix names no known format, or it cannot be written, before the work."""
    if path.suffix.lower() not in FORMATS:
        known = " or ".join(FORMATS)
        raise RequestError(f"cannot draw {path}: its suffix is {path.suffix or 'missing'}; end the name in {known}")
    require_writable(path)


def write_picture(path: Path, figure: Figure) -> None:
    """Write a figure in the format of its path's suffix, whole or not at all; RequestError as `require_picture`."""
    require_picture(path)
    write_whole(path, FORMATS[path.suffix.lower()](figure))
