"""A service that listens: under which conditions it may, and how it is run."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
from asyncio import TimerHandle, Transport
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ..db.jobs.access import Tokens
from ..db.url import is_loopback
from ..errors import RequestError
from .app import create_app
from .heap import bound_heaps
from .log import log_to_stderr, tell
from .settings import ServiceSettings
from .state import Service

NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # an address of a name that this machine does not have, e.g. ::1
MOST_HEAD_BYTES = 64 * 1024  # of a head, or of fields behind a body, beyond the piece of it that came first
HEAD_S = 30.0  # from a connection's beginning, or the first byte behind an answer, to the end of the next head
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
STOP_S = 5  # for answers under way when the service is ended
SWITCH_S = 0.001  # of Python's threads: the one that answers must not wait long for those that read


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket listening at each address of a host; RequestError where it is taken or not allowed."""
    opened: list[socket.socket] = []
    try:
        found = [(each[0], each[4]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        for family, address in dict.fromkeys(found):  # a hosts file may name one twice
            try:
                opened.append(socket.create_server(address, family=family))
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
        if not opened:
            raise OSError(errno.EADDRNOTAVAIL, "it is no address of this machine")
    except OSError as error:
        for each in opened:
            each.close()
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise RequestError(
            f"cannot listen on {host}, port {port}: {why}; give another --port or --host, or end what listens there"
        ) from error
    return opened


def require_certificate(certificate: Path, key: Path) -> None:
    """Raise RequestError where two files give no TLS: no PEM, not belonging together, or with a passphrase."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_passphrase)
    except (ssl.SSLError, OSError) as error:
        raise RequestError(
            f"no TLS with the certificate {certificate} and the key {key} ({error}); give two PEM files that belong "
            "together as --tls-cert and --tls-key"
        ) from error


def _no_passphrase() -> str:
    """Answer OpenSSL's question at the terminal, which no person of a service could."""
    raise RequestError("the key of --tls-key is encrypted; give one without a passphrase")


class BoundedConnection(HttpToolsProtocol):
    """HTTP/1.1 whose heads are bounded in size and time; bodies and silence behind an answer are so elsewhere."""

    _timer: TimerHandle | None = None  # runs while a head is awaited
    _loose_bytes = 0  # that have come since a head was complete or a piece of a body was there

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless they are too many for what they are."""
        cycle = self.cycle  # None before the first request
        is_answering = cycle is not None and not cycle.response_complete  # type: ignore[redundant-expr]
        if self._timer is None and not is_answering:
            self._await_head()
        self._loose_bytes += len(data)
        super().data_received(data)
        if self._loose_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"A request's head has at most {MOST_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Begin to count a head."""
        self._loose_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Take a whole head."""
        self._stop_waiting()
        self._loose_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._loose_bytes = 0
        super().on_body(body)

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a service listens, and who encrypts its traffic: TLS by certificate and key (both or none), or a proxy.

    A proxy's word on who asks counts only from this machine (127.0.0.1, ::1). `is_open` needs no token, on loopback
    only.
    """

    host: str = "127.0.0.1"
    port: int = 8321
    certificate: Path | None = None
    key: Path | None = None
    is_behind_proxy: bool = False
    is_open: bool = False

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise RequestError("TLS needs a certificate and its key; give --tls-cert and --tls-key")
        for file in (self.certificate, self.key):
            if file is not None and not file.is_file():
                raise RequestError(f"there is no file {file}; name the PEM file of the certificate or its key")
        if self.is_open and not self.is_private:
            where = "the proxy" if self.is_behind_proxy else self.host
            raise RequestError(
                f"without tokens anybody who reaches {where} could write; listen on 127.0.0.1 without a proxy, or "
                "leave out --no-auth and make a token with: spectune token create"
            )
        if not self.is_loopback and self.certificate is None and not self.is_behind_proxy:
            raise RequestError(
                f"on {self.host} tokens would travel unencrypted; give --tls-cert and --tls-key, or --behind-proxy "
                "where a proxy ends TLS, or listen on 127.0.0.1"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it, also not others through a proxy."""
        return self.is_loopback and not self.is_behind_proxy

    @property
    def url(self) -> str:
        """Where it is reached."""
        scheme = "http" if self.certificate is None else "https"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


class HttpServer(uvicorn.Server):
    """Tells whoever is answered at length that the service ends, before it waits for answers to end."""

    def __init__(self, config: uvicorn.Config, tell_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell_end = tell_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the service."""
        await asyncio.to_thread(self._tell_end)
        await super().shutdown(sockets)


def serve(store: str | None, listening: Listening, settings: ServiceSettings) -> None:
    """Serve a store until the process is stopped; the settings' tokens are decided here.

    StoreError: the store cannot be opened. RequestError: the certificate is none, another program listens there, or
    the store has no token and others than this machine could ask.
    """
    if listening.certificate is not None and listening.key is not None:
        require_certificate(listening.certificate, listening.key)
    bound_heaps()
    app = create_app(store, _with_access(settings, listening))
    service: Service = app.state.service
    try:
        has_tokens = Tokens(service.store).are_there()
        if not has_tokens and not listening.is_private:
            raise RequestError(
                f"{service.store.url} holds no token, so no client could connect; make one with: "
                f"spectune token create NAME --scope read --store {service.store.url}"
            )
        sockets = listening_sockets(listening.host, listening.port)
        log_to_stderr()
        tell("serving", url=listening.url, store=service.store.url, access=_access(listening, has_tokens))
        sys.setswitchinterval(SWITCH_S)
        HttpServer(configuration(app, listening), service.stop_streams).run(sockets)
    finally:
        service.store.close()


def _with_access(settings: ServiceSettings, listening: Listening) -> ServiceSettings:
    if not listening.is_private:
        return replace(settings, auth="required")
    hosts = tuple({*LOOPBACK, listening.host.lower()})
    return replace(settings, auth="off" if listening.is_open else "when-tokens-exist", hosts=hosts)


def _access(listening: Listening, has_tokens: bool) -> str:
    if listening.is_open:
        return "no token is needed (--no-auth)"
    if not has_tokens:
        return "no token is needed until the store holds one: spectune token create"
    return "a token is needed"


def configuration(app: object, listening: Listening) -> uvicorn.Config:
    """Return how an application is run."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # FastAPI is an ASGI application
        loop="uvloop",
        http=BoundedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=listening.is_behind_proxy,
        forwarded_allow_ips="127.0.0.1,::1" if listening.is_behind_proxy else None,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=STOP_S,
        backlog=2048,
    )
