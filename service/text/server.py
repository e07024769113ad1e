"""A target's endpoint that listens."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from ...errors import RequestError
from ...runtime.engine.generator import Generator
from ..log import log_to_stderr, tell
from ..server import LOOPBACK, SWITCH_S, HttpServer, Listening, configuration, listening_sockets, require_certificate
from .app import EndpointSettings, TextEndpoint


def serve_text(load: Callable[[], Generator], listening: Listening, settings: EndpointSettings) -> None:
    """Serve a target's text until the process is stopped; `load` is called once nothing else can go wrong.

    RequestError: others than this machine could ask without a key, the certificate is none, or another program
    listens there. SpectuneError: the target cannot be loaded, or there is no room for its texts.
    """
    require_key(listening, settings.api_key)
    if listening.certificate is not None and listening.key is not None:
        require_certificate(listening.certificate, listening.key)
    if settings.api_key is None:
        settings = replace(settings, hosts=tuple({*LOOPBACK, listening.host.lower()}))
    sockets = listening_sockets(listening.host, listening.port)
    generator = load()
    endpoint = TextEndpoint(generator, settings)
    endpoint.start()
    log_to_stderr()
    access = "no key is needed" if settings.api_key is None else "a key is needed"
    tell("serving", url=f"{listening.url}/v1", model=settings.name, plan=generator.choice.reason, access=access)
    sys.setswitchinterval(SWITCH_S)
    HttpServer(configuration(endpoint.app, listening), endpoint.worker.stop).run(sockets)


def require_key(listening: Listening, api_key: str | None) -> None:
    """Raise RequestError where others than this machine would ask, and need no key."""
    if api_key is None and not listening.is_private:
        raise RequestError(
            f"without a key anybody who reaches {listening.host} could let texts be decoded; give one in "
            "SPECTUNE_API_KEY, or listen on 127.0.0.1"
        )
