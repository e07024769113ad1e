"""Pages that say why there is nothing to show, and the page that requests a token."""

from __future__ import annotations

from .links import FileLinks, Links
from .page import SitePage, page_of

SIGN_IN = "sign-in"


def refusal_page(links: Links, title: str, why: str) -> SitePage:
    """Return a page that says what is wrong."""
    return page_of("refusal.html", links, "refused", title, why=why)


def sign_in_page(where: str, fault: str = "") -> SitePage:
    """Return the page that requests a token, then goes to the path `where`; `fault` says what was wrong before."""
    return page_of("sign-in.html", FileLinks(names=frozenset()), SIGN_IN, "Sign in", where=where, fault=fault)
