"""What surrounds pages: the head of the document, the way to every part of the site, and its scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from .links import Links
from .page import SitePage, asset, render


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is the same around every page.

    `place` has no secrets. `written` is "" for live pages. `nonce` lets a service's own style and scripts run; in a
    file, `policy` says what a browser may do. `is_bare` leaves out ways to pages that the reader may not see.
    """

    links: Links
    place: str
    written: str = ""
    nonce: str = ""
    policy: str = ""
    has_sign_out: bool = False
    is_bare: bool = False


def document(frame: Frame, pages: Sequence[SitePage], *, title: str, current: str) -> Markup:
    """Return an HTML document of one page, or of several as sections; the navigation marks `current`."""
    return render("frame.html", links=frame.links, frame=frame, pages=pages, title=title, current=current)


def file_policy() -> str:
    """Return what a browser may do with a file: run its own style and scripts, by their hashes, and fetch nothing."""
    scripts = " ".join(_hash(name) for name in ("theme.js", "page.js"))
    own = f"style-src {_hash('style.css')}; script-src {scripts}; img-src data:"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash(name: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(asset(name).encode()).digest()).decode()}'"
