"""Where a store lies: a path, a database's URL or a planner service's, and how it is shown without its secrets."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

import platformdirs
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ..errors import StoreError

SCHEMES = ("https", "http")
TOKEN_VARIABLE = "SPECTUNE_TOKEN"
SHAPE = "write https://host[:port][/prefix], with the token in SPECTUNE_TOKEN or as https://:TOKEN@host"
STORE_VARIABLE = "SPECTUNE_STORE"
SECRET_OPTIONS = frozenset({"password", "passwd", "pwd", "sslpassword", "ssl_passphrase", "odbc_connect"})
MASK = "***"


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
        return is_loopback(urlsplit(self.shown).hostname or "")


def is_service(place: str) -> bool:
    """Say whether the URL of a store is that of a service."""
    return place.partition("://")[0].lower() in SCHEMES and "://" in place


def service_url(place: str) -> ServiceUrl:
    """Return where a service is, and its token: the URL's, else SPECTUNE_TOKEN.

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


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def default_path() -> Path:
    """Return the SQLite file used when neither an argument nor SPECTUNE_STORE names a store."""
    return Path(platformdirs.user_data_dir("spectune", appauthor=False)) / "store.db"


def named_place(url: str | None = None) -> str:
    """Return what names the store: the argument, else SPECTUNE_STORE, else the default path."""
    return url or os.environ.get(STORE_VARIABLE) or str(default_path())


def settled_place(url: str | None = None) -> str:
    """Return the store's place, whatever folder and SPECTUNE_STORE, maybe with a password; or StoreError."""
    place = named_place(url)
    return place if is_service(place) else resolve_url(place).render_as_string(hide_password=False)


def resolve_url(url: str | None = None) -> URL:
    """Return where a store lies for SQLAlchemy (`str` hides a password); None is SPECTUNE_STORE or the default.

    StoreError: the text is neither a path nor a URL; it may hold a password, so the message does not repeat it.
    """
    place = named_place(url)
    if place == ":memory:":
        return URL.create("sqlite")
    if "://" not in place:
        return URL.create("sqlite", database=str(Path(place).expanduser().absolute()))
    parsed = _parse(place)
    file = sqlite_file(parsed)  # absolute: connections opened after a chdir must reach the same store
    return parsed if file is None else parsed.set(database=str(file.absolute()))


def sqlite_file(url: URL) -> Path | None:
    """Return the file behind an SQLite URL, or None for a server, for memory and for SQLite's own file: URIs."""
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    if not is_file or str(url.database).startswith("file:"):
        return None
    return Path(str(url.database))


def is_sqlite_memory(url: URL) -> bool:
    """Say whether the store lives in this process's memory only."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def shown(url: URL) -> str:
    """Return the URL for people: passwords, in options too, are replaced by stars."""
    options = {name: MASK if name.lower() in SECRET_OPTIONS else value for name, value in url.query.items()}
    return url.set(query=options).render_as_string(hide_password=True)


def secrets_of(url: URL) -> tuple[str, ...]:
    """Return every text of the URL that no message may repeat."""
    options = [url.query[name] for name in url.query if name.lower() in SECRET_OPTIONS]
    texts = [text for option in options for text in ([option] if isinstance(option, str) else option)]
    return tuple(text for text in (str(url.password or ""), *texts) if text)


def _parse(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):  # their messages may quote the password, so they are not chained
        scheme = text.split("://", 1)[0]
    raise StoreError(
        f"cannot read the store URL that starts with {scheme!r}; "
        "write a path, or dialect://user:password@host:port/name with special characters percent-encoded"
    )
