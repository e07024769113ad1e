"""`spectune endpoint`: a target's text for clients of OpenAI's API."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from . import options
from .command import Command


@click.command(
    cls=Command,
    basic=("target", "draft-model", "drafter", "plan", "temperature", "slots", "host", "port", "api-key", "device"),
    stray="name the model with --target MODEL",
)
@options.target
@options.drafters
@options.followed_plan
@options.device
@options.planned_dtype
@options.followed_workload
@click.option(
    "--temperature",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0.0),
    help="Of the plan, and of requests that name none.",
)
@options.allow_lossy
@options.store
@click.option("--name", metavar="NAME", help="What clients call the model; the folder's or id's name unless given.")
@click.option("--slots", default=8, show_default=True, type=click.IntRange(1), help="Requests decoded at once.")
@click.option("--longest", type=click.IntRange(2), metavar="N", help="Tokens of a request; 2048 unless given.")
@click.option("--most", default=256, show_default=True, type=click.IntRange(1), help="Requests that may run or wait.")
@click.option(
    "--prefix-caching/--no-prefix-caching", default=True, show_default=True, help="Read what prompts share once."
)
@click.option(
    "--spare-slots",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Slots in which nothing is decoded: they keep texts that have ended.",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="On which port.")
@click.option("--api-key", envvar="SPECTUNE_API_KEY", metavar="KEY", help="What clients send; or SPECTUNE_API_KEY.")
@options.tls_cert
@options.tls_key
@click.option("--behind-proxy", "is_behind_proxy", is_flag=True, help="A proxy ends TLS.")
def endpoint(
    target: str,
    temperature: float,
    name: str | None,
    slots: int,
    longest: int | None,
    most: int,
    prefix_caching: bool,
    spare_slots: int,
    host: str,
    port: int,
    api_key: str | None,
    certificate: Path | None,
    key: Path | None,
    is_behind_proxy: bool,
    **loaded: Any,  # what `load` takes besides
) -> None:
    """Serve the target over OpenAI's API.

    Decodes by the stored plan, as `spectune run` does, all requests in one running batch. Serves /v1/completions and
    /v1/chat/completions, streamed or not, /v1/models, /health and /metrics. Logs are JSON lines on stderr.

    \b
        spectune endpoint --target path/to/target
        spectune endpoint --target path/to/target --temperature 0.8 --slots 16 --spare-slots 16
    """
    from ..profiler.hub import resolve_model
    from ..profiler.snapshot import name_of
    from ..runtime.load import load
    from ..service.server import Listening
    from ..service.text.app import EndpointSettings
    from ..service.text.server import serve_text

    place = resolve_model(target)
    settings = EndpointSettings(
        name=name or name_of(place.resolve()),
        slots=slots,
        longest=longest,
        most=most,
        temperature=temperature,
        api_key=api_key,
        prefix_caching=prefix_caching,
        spare_slots=spare_slots,
    )
    loading = partial(load, place, temperature=temperature, **loaded)
    serve_text(
        loading,
        Listening(host=host, port=port, certificate=certificate, key=key, is_behind_proxy=is_behind_proxy),
        settings,
    )
