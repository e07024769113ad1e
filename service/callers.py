"""The caller: tokens of programs and of browsers' cookies, found by their hash as the store knew them a moment ago."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from time import monotonic

from ..db import store  # noqa: F401 - it declares the endpoints that ADMIN is made of
from ..db.endpoint import ENDPOINTS, IN_PATH
from ..db.jobs.access import Scope, TokenRow, Tokens, token_hash
from ..db.sql.tables import utc_now
from .problem import ProblemError
from .remembered import Remembered
from .settings import Auth

COOKIE = "spectune_token"
KEPT_S = 12 * 3600
TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,200}")
PAGES = re.compile(r"/|/(plans|drift|jobs)|/(devices|surfaces|traces|plans)/.*")
OPEN_PAGES = ("/sign-in", "/sign-out")
ANYBODY = "anybody"  # the name of whoever needs no token
OPEN = ("/healthz", "/readyz", *OPEN_PAGES)
ADMIN = re.compile("|".join(IN_PATH.sub("[^/]+", each.path) for each in ENDPOINTS.values() if each.scope == "admin"))
QUESTIONS = ("/v1/resolve",)  # asked by POST because of their length
LONGEST_TOKEN = 200
SLOWEST_NEWS_S = 0.05  # between two readings of the tokens; whoever asks meanwhile waits for the second


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller, and what it may do."""

    name: str
    scope: Scope


def scope_for(method: str, path: str) -> Scope | None:
    """Return what a request needs, None where anybody may ask; whatever is not listed needs a token."""
    if path in OPEN:
        return None
    if method in ("GET", "HEAD", "OPTIONS") or path in QUESTIONS:
        return "read"
    return "admin" if ADMIN.fullmatch(path) else "write"


def token_of(method: str, path: str, headers: Mapping[bytes, bytes]) -> str | None:
    """Return the token a request brings: as a bearer, or for a page in a browser's cookie."""
    kind, _, value = headers.get(b"authorization", b"").decode("latin-1").strip().partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    is_read = method in ("GET", "HEAD") and is_page(path)
    return token_in_cookie(headers) if is_read else None


class Callers(Remembered):
    """The tokens of a store, remembered for a moment."""

    def __init__(self, tokens: Tokens, auth: Auth, fresh_s: float) -> None:
        """Take the store's tokens, whether they are needed, and how long they may be remembered."""
        super().__init__()
        self._tokens, self._auth, self._fresh_s = tokens, auth, fresh_s
        self._rows: dict[str, TokenRow] = {}

    @property
    def needs_token(self) -> bool:
        """Whether anybody is refused who brings none."""
        return self._auth == "required" or (self._auth == "when-tokens-exist" and bool(self._rows))

    def knows(self, token: str | None) -> bool:
        """Whether what is in memory is new enough to judge a token by: a token may have been made a moment ago."""
        is_known = not token or token_hash(token) in self._rows
        return is_known and self.is_fresh(self._fresh_s)

    def rest_s(self) -> float:
        """Return how long to wait before the tokens are read again, so that unknown ones cannot busy the store."""
        return max(0.0, self._read_at + SLOWEST_NEWS_S - monotonic())

    def _look(self) -> None:
        self._rows = {row.hash: row for row in self._tokens.rows()}

    def caller(self, token: str | None, needed: Scope) -> Caller:
        """Return the caller; raise ProblemError: 401 without a valid token, 403 with one of too small a scope."""
        if not self.needs_token:
            return Caller(name=ANYBODY, scope="admin")
        row = self.row(token)
        if row is None:
            why = "the token is unknown, expired or revoked" if token else "a token is needed"
            told = f"{why}; send it as 'Authorization: Bearer spt_...', make one with: spectune token create"
            raise ProblemError(401, "unauthorized", told, {"WWW-Authenticate": 'Bearer realm="spectune"'})
        if not row.allows(needed):
            raise ProblemError(403, "forbidden", f"this needs a token of scope {needed}, {row.name!r} has {row.scope}")
        return Caller(name=row.name, scope=row.scope)  # type: ignore[arg-type]  # checked when it was made

    def row(self, token: str | None) -> TokenRow | None:
        """Return the token's row while it holds, else None."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        hashed = token_hash(token)
        row = self._rows.get(hashed)
        is_it = row is not None and compare_digest(row.hash, hashed)
        return row if row is not None and is_it and row.holds_at(utc_now()) else None
