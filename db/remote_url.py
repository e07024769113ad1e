"""Where a planner service is, with its token apart from the URL, so that no message can show it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ..errors import StoreError

SCHEMES = ("https", "http")
TOKEN_VARIABLE = "SPECTUNE_TOKEN"
SHAPE = "write https://host[:port][/prefix], with the token in SPECTUNE_TOKEN or as https://:TOKEN@host"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUrl:
    """One service; `shown` is its URL without the token, under which all its files are."""

    shown: str  # no slash at its end
    token: str | None = field(default=None, repr=False)

    @property
    def folder_name(self) -> str:
        """A name for this service's files here: equal for equal URLs, whatever the token."""
        return hashlib.sha256(self.shown.encode()).hexdigest()[:16]

    @property
    def in_full(self) -> str:
        """The URL with the token in it, as `service_url` reads it; for other processes, never for people."""
        scheme, _, place = self.shown.partition("://")
        return self.shown if self.token is None else f"{scheme}://:{quote(self.token, safe='')}@{place}"

    @property
    def is_encrypted(self) -> bool:
        """Whether requests travel under TLS."""
        return self.shown.startswith("https://")

    @property
    def is_loopback(self) -> bool:
        """Whether requests stay on this machine."""
        return _is_loopback(urlsplit(self.shown).hostname or "")


def is_service(place: str) -> bool:
    """Say whether the URL of a store is that of a service."""
    return place.partition("://")[0].lower() in SCHEMES and "://" in place


def service_url(place: str) -> ServiceUrl:
    """Return where a service is, and its token: the URL's, else SPECTUNE_TOKEN.

    Raises:
        StoreError: it is no such URL, or its token is none or would travel in clear; no secret is in the message.
    """
    parts = _split(place)
    token = unquote(parts.password) if parts.password else os.environ.get(TOKEN_VARIABLE) or None
    url = ServiceUrl(shown=f"{parts.scheme}://{_host(parts)}{parts.path.rstrip('/')}", token=token)
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise StoreError(f"the token for {url.shown} has characters no token has; copy it again from: spectune token")
    if token is not None and parts.scheme == "http" and not url.is_loopback:
        raise StoreError(f"a token would travel to {url.shown} for everybody to read; use https:// there")
    return url


def _split(place: str) -> SplitResult:
    try:
        parts = urlsplit(place)
        is_sound = bool(parts.hostname) and parts.port != 0
    except ValueError:  # its message may quote the token, so it is not chained
        is_sound = False
    if not is_sound:
        raise StoreError(f"cannot read the URL of the service; {SHAPE}")
    if parts.username or parts.query or parts.fragment:
        raise StoreError(f"the URL of the service at {parts.hostname} has parts that mean nothing here; {SHAPE}")
    return parts


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
