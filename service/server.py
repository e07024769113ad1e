"""A service that listens: under which conditions it may, and how it is run."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from ..db.access import Tokens
from ..errors import RequestError
from .app import create_app
from .connection import BoundedConnection
from .heap import bound_heaps
from .log import log_to_stderr, tell
from .settings import Settings
from .sockets import listening_sockets, require_certificate
from .state import Service

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
STOP_S = 5  # for answers under way when the service is ended
SWITCH_S = 0.001  # of Python's threads: the one that answers must not wait long for those that read


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
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

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


class Server(uvicorn.Server):
    """Tells followers of jobs that the service ends, before it waits for answers to end."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the service."""
        self._service.is_stopping = True
        await super().shutdown(sockets)


def serve(store: str | None, listening: Listening, settings: Settings) -> None:
    """Serve a store until the process is told to end; the settings' tokens are decided here.

    Raises:
        StoreError: the store cannot be opened.
        RequestError: the certificate is none, another program listens there, or the store has no token and others than
            this machine could ask.
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
        Server(configuration(app, listening), service).run(sockets)
    finally:
        service.store.close()


def _with_access(settings: Settings, listening: Listening) -> Settings:
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
