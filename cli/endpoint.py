"""`spectune endpoint`: a target's text for clients of OpenAI's API."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import options
from .command import Args, command, fields_of
from .model import loading
from .option import option, whole


@dataclass(frozen=True, kw_only=True)
class EndpointArgs(Args):
    """What was typed; the fields of EndpointSettings and Listening have their names there, and these check them."""

    target: str = options.target
    drafters: dict[str, str] = options.drafters
    plan: str = options.followed_plan
    device: str = options.device
    dtype: str | None = options.planned_dtype
    workload: str | None = options.followed_workload
    temperature: float = options.temperature.but(help="Of the plan, and of requests that name none.")
    allow_lossy: bool = options.allow_lossy
    store: str | None = options.store
    name: str | None = option("What clients call the model; the folder's or id's name unless given.", metavar="NAME")
    slots: int = whole("Requests decoded at once.", default=8)
    longest: int | None = whole("Tokens of a request; 2048 unless given.", least=2, metavar="N")
    most: int = whole("Requests that may run or wait.", default=256)
    prefix_caching: bool = option("Read what prompts share once.", "--prefix-caching/--no-prefix-caching", default=True)
    spare_slots: int = whole(
        "Slots in which nothing is decoded: they keep texts that have ended.", least=0, default=0, metavar="N"
    )
    host: str = options.host
    port: int = options.port.but(default=8000)
    api_key: str | None = option("What clients send; or SPECTUNE_API_KEY.", envvar="SPECTUNE_API_KEY", metavar="KEY")
    certificate: Path | None = options.tls_cert
    key: Path | None = options.tls_key
    is_behind_proxy: bool = options.is_behind_proxy


@command(
    EndpointArgs,
    basic="target draft-model drafter plan temperature slots host port api-key device",
    stray="name the model with --target MODEL",
)
def endpoint(args: EndpointArgs) -> None:
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

    place = resolve_model(args.target)
    name = args.name or name_of(place.resolve())
    settings = EndpointSettings(**(fields_of(EndpointSettings, args) | {"name": name}))
    serve_text(partial(load, place, **loading(args)), Listening(**fields_of(Listening, args)), settings)
