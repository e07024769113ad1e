"""The token of a browser: a cookie for pages alone, that scripts cannot read and other sites cannot send."""

from __future__ import annotations

import re
from collections.abc import Mapping

COOKIE = "spectune_token"
KEPT_S = 12 * 3600
TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,200}")
PAGES = re.compile(r"/|/(plans|drift|jobs)|/(devices|surfaces|traces|plans)/.*")
OPEN_PAGES = ("/sign-in", "/sign-out")


def is_page(path: str) -> bool:
    """Say whether a path is a page for people: the only places where the cookie counts."""
    return PAGES.fullmatch(path) is not None


def token_in_cookie(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the token of a browser, None where there is none or it has another form."""
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and TOKEN.fullmatch(value):
            return value
    return None


def kept(token: str, *, is_secure: bool) -> str:
    """Return the header that lets a browser keep a token."""
    return f"{COOKIE}={token}; Max-Age={KEPT_S}; {_manners(is_secure)}"


def forgotten(*, is_secure: bool) -> str:
    """Return the header that lets a browser forget its token."""
    return f"{COOKIE}=; Max-Age=0; {_manners(is_secure)}"


def _manners(is_secure: bool) -> str:
    return "Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if is_secure else "")
