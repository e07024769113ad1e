"""`spectune serve`: a store for many machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from . import options
from .command import Args, command, fields_of
from .option import flag, option, real, whole

TEXT = "serve serves the store; text is served by: spectune endpoint --target"


def _text_is_served_elsewhere(_ctx: click.Context, _param: click.Parameter, model: str | None) -> None:
    """Refuse a model, and name the command that serves it."""
    if model is not None:
        raise click.UsageError(f"{TEXT} {model}")


@dataclass(frozen=True, kw_only=True)
class ServeArgs(Args):
    """What was typed; the fields of the service's ServiceSettings and Listening have their names there."""

    target: None = option(
        "Of `spectune endpoint`, which serves text.",
        *("--target", "--model", "target"),
        hidden=True,
        callback=_text_is_served_elsewhere,
    )
    store: str | None = options.store
    host: str = options.host
    port: int = options.port.but(default=8321)
    certificate: Path | None = options.tls_cert
    key: Path | None = options.tls_key
    is_behind_proxy: bool = options.is_behind_proxy.but(help="A proxy ends TLS; one here names the client.")
    is_open: bool = flag("Serve without tokens; on loopback only.", "--no-auth")
    workers: int = whole("Processes that plan.", least=0, most=64, default=1)
    rate_per_s: float = real("Requests a second of one token; 0 is no limit.", "--rate", default=2000.0)


@command(ServeArgs, stray=f"{TEXT} MODEL")
def serve(args: ServeArgs) -> None:
    """Serve the store to other machines.

    Others use it as a store: --store https://host:8321, with the token in SPECTUNE_TOKEN. Make tokens with
    `spectune token create`; until the store holds one, this machine needs none. Logs are JSON lines on stderr. Text
    is served by `spectune endpoint`.

    \b
        spectune serve --store measurements.db
        spectune serve --store postgresql+psycopg://host/name --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    from ..service.server import Listening
    from ..service.server import serve as run
    from ..service.settings import ServiceSettings

    run(args.store, Listening(**fields_of(Listening, args)), ServiceSettings(**fields_of(ServiceSettings, args)))
