"""`spectune edge serve`: a target that verifies what devices draft."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ..errors import RequestError
from . import options
from .command import Command
from .report import Settings, facts_of, print_json, tell

if TYPE_CHECKING:
    from ..runtime.edge.verifier import EdgeVerifier
    from ..runtime.models.forward import CausalModel

PORT = 8322
TOKEN = "SPECTUNE_EDGE_TOKEN"


@click.command(
    cls=Command,
    basic=("target", "host", "port", "slots", "devices", "gather", "wait-ms", "device", "dtype", "store"),
    stray="name the model with --target MODEL",
)
@options.target
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0 is any that is free.")
@click.option("--slots", default=8, show_default=True, type=click.IntRange(1), help="Texts at once.")
@click.option("--capacity", default=1024, show_default=True, type=click.IntRange(2), help="Tokens of a text.")
@click.option("--most-drafted", default=16, show_default=True, type=click.IntRange(1, 256), help="Tokens of a draft.")
@click.option(
    "--gather", default=1, show_default=True, type=click.IntRange(1), help="Drafts to wait for, up to --wait-ms."
)
@click.option(
    "--wait-ms", default=0.0, show_default=True, type=click.FloatRange(0.0), help="A draft waits for --gather of them."
)
@click.option("--devices", type=click.IntRange(1), help="Expected at once; as many as slots, if so many were timed.")
@options.device
@options.dtype
@options.workload
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0.0), help="Of the profile.")
@options.store
@click.pass_obj
def serve(
    settings: Settings,
    /,
    target: str,
    host: str,
    port: int,
    slots: int,
    capacity: int,
    most_drafted: int,
    gather: int,
    wait_ms: float,
    devices: int | None,
    device: str,
    dtype: str,
    workload: str,
    temperature: float,
    store: str | None,
) -> None:
    """Verify what devices draft.

    The server plans how each device drafts, from its speed, its distance, and the store's profile of the target.
    Devices must know the token in SPECTUNE_EDGE_TOKEN, if that is set. The connection is not encrypted: across
    networks use a proxy or a tunnel. Ends with Ctrl-C, and prints what was done.

    \b
        spectune edge serve --target path/to/target
        spectune edge serve --target path/to/target --host 0.0.0.0 --slots 32 --gather 8 --wait-ms 5
    """
    if (gather > 1) is not (wait_ms > 0.0):
        raise click.UsageError(
            f"drafts wait for each other with --gather above 1 and --wait-ms above 0, got {gather} and {wait_ms:g}; "
            "give both or neither"
        )
    import asyncio

    from ..db import open_store
    from ..planner.edge.setting import BatchRule
    from ..profiler.device import detect
    from ..profiler.hub import resolve_model
    from ..runtime.edge.server import EdgeServer
    from ..runtime.edge.verification_queue import VerificationQueue
    from ..runtime.engine.stop_tokens import end_tokens
    from ..runtime.models.loading import load_model, load_tokenizer
    from ..runtime.models.vocabulary import vocabulary_hash
    from ..tuning.edge import EdgeRequest, adviser_from_store
    from ..tuning.family import torch_device
    from .existing import as_it_is

    here, rule, place = detect(device), BatchRule(size=gather, wait_ms=wait_ms), resolve_model(target)
    request = EdgeRequest(target=place, device=device, dtype=dtype, workload=workload, temperature=temperature)
    with open_store(as_it_is(store)) as opened:
        adviser = adviser_from_store(
            request, opened, slots=slots, devices=devices, rule=rule, most_drafted=most_drafted
        )
    if adviser.why_not:
        tell(settings, f"devices are told to draft as is usual: {adviser.why_not}")
    model = load_model(str(place), dtype=here.dtype_for(dtype), device=torch_device(here))
    verifier = _verifier(settings, model, slots=slots, capacity=capacity, most_drafted=most_drafted)
    tokenizer = load_tokenizer(str(place))
    ends, secret = end_tokens(place, tokenizer), os.environ.get(TOKEN, "")
    desk = VerificationQueue(
        verifier, rule, adviser, token=secret, tokenizer=vocabulary_hash(tokenizer), stop=tuple(sorted(ends))
    )
    server = EdgeServer(desk, host=host, port=port)
    try:
        asyncio.run(server.serve(lambda at: tell(settings, f"listening on {host}:{at}")))
    except OSError as error:
        raise RequestError(f"cannot listen on {host}:{port} ({error}); take another --host or --port") from error
    except KeyboardInterrupt:
        pass
    print_json(facts_of(desk.counters))


def _verifier(settings: Settings, model: CausalModel, *, slots: int, capacity: int, most_drafted: int) -> EdgeVerifier:
    from ..runtime.edge.verifier import EdgeVerifier

    room = min(capacity, model.longest_context - most_drafted - 1)
    if room < 2:
        raise RequestError(
            f"the target has {model.longest_context} positions, no more than a draft; lower --most-drafted"
        )
    if room < capacity:
        tell(settings, f"texts have room for {room} tokens, since the target has {model.longest_context} positions")
    try:
        return EdgeVerifier(model, slots=slots, capacity=room, most_drafted=most_drafted)
    except (MemoryError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise RequestError(
            f"{slots} texts of {room} tokens do not fit into memory ({reason}); lower --slots or --capacity"
        ) from error
