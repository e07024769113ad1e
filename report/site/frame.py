"""What surrounds pages: the head of the document, the way to every part of the site, and its scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from .links import DRIFT, HOME, JOBS, PLANS, Links
from .markup import Child, Html, joined, tag
from .page import SitePage
from .script import SCRIPT, THEME_SCRIPT
from .style import STYLE

ICON = (  # of the browser's tab; in the address itself, so that nothing is fetched
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 20 20'%3E%3Cg fill='none' "
    "stroke='%23168790' stroke-width='2' stroke-linecap='round'%3E%3Cpath d='M3 10h4.5M7.5 10 13 4.6h4M7.5 10H17M7.5 "
    "10l5.5 5.4h4'/%3E%3C/g%3E%3Ccircle cx='3.4' cy='10' r='2.4' fill='%23168790'/%3E%3C/svg%3E"
)
NAVIGATION = ((HOME, "Overview"), (PLANS, "Plans"), (DRIFT, "Drift"), (JOBS, "Jobs"))
SIGN = Html(
    '<svg viewBox="0 0 20 20" aria-hidden="true"><g fill="none" stroke="currentColor" stroke-width="1.9" '
    'stroke-linecap="round"><path d="M3 10h4.5M7.5 10 13 4.6h4M7.5 10H17M7.5 10l5.5 5.4h4"/></g>'
    '<circle cx="3.4" cy="10" r="2.3" fill="currentColor"/></svg>'
)


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


def document(frame: Frame, pages: Sequence[SitePage], *, title: str, current: str) -> Html:
    """Return an HTML document of one page, or of several as sections; the navigation marks `current`."""
    nonce = frame.nonce or None
    policy = tag("meta", http_equiv="Content-Security-Policy", content=frame.policy) if frame.policy else None
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        policy,
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href=ICON),
        tag("title", f"{title} \N{MIDDLE DOT} spectune"),
        tag("script", Html(THEME_SCRIPT), nonce=nonce),
        tag("style", Html(STYLE), nonce=nonce),
    )
    sections = [_section(page, is_alone=len(pages) == 1) for page in pages]
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _top(frame, current),
        tag("main", sections, id="content", class_="wide", tabindex="-1"),
        _foot(frame),
        tag("div", id="tip", role="tooltip", hidden=True),
        tag("script", Html(SCRIPT), nonce=nonce),
    )
    return joined(Html("<!DOCTYPE html>\n"), tag("html", head, body, lang="en"), Html("\n"))


def file_policy() -> str:
    """Return what a browser may do with a file: run its own style and scripts, by their hashes, and fetch nothing."""
    scripts = " ".join(_hash(text) for text in (THEME_SCRIPT, SCRIPT))
    own = f"style-src {_hash(STYLE)}; script-src {scripts}; img-src data:"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _section(page: SitePage, *, is_alone: bool) -> Html:
    return tag("article", page.body, id=page.anchor, class_=None if is_alone else "section")


def _top(frame: Frame, current: str) -> Html:
    home = frame.links.to(HOME) or "#content"
    shown = [
        tag("a", title, href=place, aria_current="page" if name == current else None)
        for name, title in NAVIGATION
        if not frame.is_bare and (place := frame.links.to(name)) is not None
    ]
    out = (
        tag("form", tag("button", "Sign out", type="submit"), method="post", action="/sign-out")
        if frame.has_sign_out
        else None
    )
    return tag(
        "header",
        tag("a", SIGN, "spectune", href=home, class_="mark-name"),
        tag("nav", shown, aria_label="Pages"),
        tag("button", "Dark mode", type="button", id="theme", hidden=True),
        out,
        class_="wide top",
    )


def _foot(frame: Frame) -> Html:
    said: Child = [frame.place, f", written {frame.written}" if frame.written else None]
    return tag("footer", tag("div", said, class_="foot"), class_="wide")
