"""`spectune edge serve`: a target that verifies what devices draft."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..errors import RequestError
from . import options
from .command import Args, command, fields_of
from .option import real, whole
from .report import facts_of, print_json, tell

if TYPE_CHECKING:
    from pathlib import Path

    from ..runtime.edge.verification_queue import VerificationQueue
    from ..runtime.edge.verifier import EdgeVerifier
    from ..runtime.models.forward import CausalModel

PORT = 8322
TOKEN = "SPECTUNE_EDGE_TOKEN"


@dataclass(frozen=True, kw_only=True)
class EdgeServeArgs(Args):
    """What was typed; the fields of an EdgeRequest have their names there."""

    target: str = options.target
    host: str = options.host
    port: int = whole("0 is any that is free.", least=0, most=65535, default=PORT)
    slots: int = whole("Texts at once.", default=8)
    capacity: int = whole("Tokens of a text.", least=2, default=1024)
    most_drafted: int = whole("Tokens of a draft.", most=256, default=16)
    gather: int = whole("Drafts to wait for, up to --wait-ms.", default=1)
    wait_ms: float = real("A draft waits for --gather of them.", default=0.0)
    devices: int | None = whole("Expected at once; as many as slots, if so many were timed.")
    device: str = options.device
    dtype: str = options.dtype
    workload: str = options.workload
    temperature: float = options.temperature.but(help="Of the profile.")
    store: str | None = options.store


@command(
    EdgeServeArgs,
    basic="target host port slots devices gather wait-ms device dtype store",
    stray="name the model with --target MODEL",
)
def serve(args: EdgeServeArgs) -> None:
    """Verify what devices draft.

    The server plans how each device drafts, from its speed, its distance, and the store's profile of the target.
    Devices must know the token in SPECTUNE_EDGE_TOKEN, if that is set. The connection is not encrypted: across
    networks use a proxy or a tunnel. Ends with Ctrl-C, and prints what was done.

    \b
        spectune edge serve --target path/to/target
        spectune edge serve --target path/to/target --host 0.0.0.0 --slots 32 --gather 8 --wait-ms 5
    """
    if (args.gather > 1) is not (args.wait_ms > 0.0):
        raise click.UsageError(
            f"drafts wait for each other with --gather above 1 and --wait-ms above 0, got {args.gather} and "
            f"{args.wait_ms:g}; give both or neither"
        )
    import asyncio

    from ..profiler.hub import resolve_model
    from ..runtime.edge.server import EdgeServer

    queue = _queue(args, resolve_model(args.target))
    server = EdgeServer(queue, host=args.host, port=args.port)
    try:
        asyncio.run(server.serve(lambda at: tell(args.settings, f"listening on {args.host}:{at}")))
    except OSError as error:
        raise RequestError(
            f"cannot listen on {args.host}:{args.port} ({error}); take another --host or --port"
        ) from error
    except KeyboardInterrupt:
        pass
    print_json(facts_of(queue.counters))


def _queue(args: EdgeServeArgs, place: Path) -> VerificationQueue:
    """Load the target, and return what takes drafts in for it and advises their devices."""
    from ..db import open_store
    from ..planner.edge.setting import BatchRule
    from ..runtime.edge.verification_queue import VerificationQueue
    from ..runtime.engine.stop_tokens import end_tokens
    from ..runtime.models.loading import load_tokenizer
    from ..runtime.models.vocabulary import vocabulary_hash
    from ..tuning.edge import EdgeRequest, adviser_from_store
    from ..tuning.family import load_here
    from .existing import as_it_is

    rule = BatchRule(size=args.gather, wait_ms=args.wait_ms)
    request = EdgeRequest(**(fields_of(EdgeRequest, args) | {"target": place}))
    with open_store(as_it_is(args.store)) as opened:
        adviser = adviser_from_store(
            request, opened, slots=args.slots, devices=args.devices, rule=rule, most_drafted=args.most_drafted
        )
    if adviser.why_not:
        tell(args.settings, f"devices are told to draft as is usual: {adviser.why_not}")
    verifier = _verifier(args, load_here(place, args.device, args.dtype))
    tokenizer = load_tokenizer(str(place))
    ends, secret = end_tokens(place, tokenizer), os.environ.get(TOKEN, "")
    own = vocabulary_hash(tokenizer)
    return VerificationQueue(verifier, rule, adviser, token=secret, tokenizer=own, stop=tuple(sorted(ends)))


def _verifier(args: EdgeServeArgs, model: CausalModel) -> EdgeVerifier:
    from ..runtime.edge.verifier import EdgeVerifier

    longest, slots, most_drafted = model.longest_context, args.slots, args.most_drafted
    room = min(args.capacity, longest - most_drafted - 1)
    if room < 2:
        raise RequestError(f"the target has {longest} positions, no more than a draft; lower --most-drafted")
    if room < args.capacity:
        tell(args.settings, f"texts have room for {room} tokens, since the target has {longest} positions")
    try:
        return EdgeVerifier(model, slots=slots, capacity=room, most_drafted=most_drafted)
    except (MemoryError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise RequestError(
            f"{slots} texts of {room} tokens do not fit into memory ({reason}); lower --slots or --capacity"
        ) from error
