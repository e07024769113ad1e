"""`spectune serve`: a store for many machines."""

from __future__ import annotations

from pathlib import Path

import click

from . import options
from .command import Command

TEXT = "serve serves the store; text is served by: spectune endpoint --target"


def _text_is_served_elsewhere(_ctx: click.Context, _param: click.Parameter, model: str | None) -> None:
    """Refuse a model, and name the command that serves it."""
    if model is not None:
        raise click.UsageError(f"{TEXT} {model}")


@click.command(cls=Command, stray=f"{TEXT} MODEL")
@click.option(
    "--target",
    "--model",
    hidden=True,
    expose_value=False,
    callback=_text_is_served_elsewhere,
    help="Of `spectune endpoint`, which serves text.",
)
@options.store
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", default=8321, show_default=True, type=click.IntRange(1, 65535), help="On which port.")
@options.tls_cert
@options.tls_key
@click.option("--behind-proxy", "is_behind_proxy", is_flag=True, help="A proxy ends TLS; one here names the client.")
@click.option("--no-auth", "is_open", is_flag=True, help="Serve without tokens; on loopback only.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(0, 64), help="Processes that plan.")
@click.option(
    "--rate",
    "rate_per_s",
    default=2000.0,
    show_default=True,
    type=click.FloatRange(0.0),
    help="Requests a second of one token; 0 is no limit.",
)
def serve(
    store: str | None,
    host: str,
    port: int,
    certificate: Path | None,
    key: Path | None,
    is_behind_proxy: bool,
    is_open: bool,
    workers: int,
    rate_per_s: float,
) -> None:
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

    listening = Listening(
        host=host, port=port, certificate=certificate, key=key, is_behind_proxy=is_behind_proxy, is_open=is_open
    )
    run(store, listening, ServiceSettings(workers=workers, rate_per_s=rate_per_s))
