"""`spectune edge run`: a device that drafts for a target elsewhere."""

from __future__ import annotations

import os
import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..errors import RequestError
from . import options
from .command import Args, command, fields_of
from .edge_serve import PORT, TOKEN
from .option import option, real, whole
from .prompts import typed_text
from .report import facts_of, print_json, tell

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from ..runtime.edge.device import EdgeRun
    from ..runtime.engine.detokenizer import Detokenizer


def _address(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, int]:
    read = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    if read is None or not 0 < int(read[3] or PORT) < 65536:
        raise click.BadParameter(f"{text!r} is no HOST:PORT; write for example 192.168.1.5:{PORT} or [::1]:{PORT}")
    return read[1] or read[2], int(read[3] or PORT)


@dataclass(frozen=True, kw_only=True)
class EdgeRunArgs(Args):
    """What was typed; the fields of GenerationSettings and RetryPolicy have their names there."""

    server: tuple[str, int] = option("Where the target is.", required=True, metavar="HOST[:PORT]", callback=_address)
    named: str = option(
        f"The drafter: {options.MODEL_FORMS}.", "--drafter", "--draft-model", required=True, metavar="MODEL"
    )
    prompt: str = options.prompt
    device: str = options.device
    dtype: str = options.dtype
    temperature: float = options.temperature
    stop: tuple[str, ...] = options.stop
    max_new_tokens: int = options.max_new_tokens
    seed: int = options.seed
    timeout_s: float = real("Before asking again.", least=0.01, default=2.0)
    fallback: int = whole(
        "Tokens the drafter says alone where the server is silent: not the target's own.",
        least=0,
        default=0,
        metavar="N",
    )
    as_json: bool = options.as_json


@command(EdgeRunArgs, basic="server drafter prompt max-new-tokens temperature stop device dtype seed json")
def run(args: EdgeRunArgs) -> None:
    """Decode a prompt with a drafter here and the target on a server.

    The text is the target's own. The server says how to draft, and stderr why. Lost messages are sent again. With
    --fallback the drafter continues alone after eight requests without an answer. Those tokens are not the
    target's, and you see which.

    \b
        spectune edge run --server host:8322 --drafter path/to/small --prompt "def main():"
        spectune edge run --server host --drafter path/to/small --prompt - --temperature 0.8 --json < prompt.txt
    """
    text = typed_text(args.prompt)
    from ..profiler.hub import resolve_model
    from ..profiler.identity import identify
    from ..runtime.edge.device import EdgeRun
    from ..runtime.edge.joining import joined
    from ..runtime.edge.patience import RetryPolicy
    from ..runtime.engine.detokenizer import Detokenizer
    from ..runtime.engine.prompts import request_of
    from ..runtime.engine.settings import GenerationSettings
    from ..runtime.models.formats import draft_role
    from ..runtime.models.loading import load_tokenizer
    from ..runtime.models.vocabulary import vocabulary_hash
    from ..tuning.family import load_here

    drafter = resolve_model(args.named)
    wanted, identity = GenerationSettings(**fields_of(GenerationSettings, args)), identify(drafter)
    if draft_role(drafter) != "draft":
        raise RequestError(
            f"{identity.name} reads what the target computes, which a device has not; take a draft model"
        )
    tokenizer, done = load_tokenizer(str(drafter)), EdgeRun()
    model = load_here(drafter, args.device, args.dtype)
    secret, patience = os.environ.get(TOKEN, ""), RetryPolicy(timeout_s=args.timeout_s, fallback=args.fallback)
    own = vocabulary_hash(tokenizer)
    with joined(args.server, identity, model, tokenizer=own, token=secret, patience=patience) as (remote, known):
        tell(args.settings, known.welcome.reason)
        request = request_of(tokenizer, text, wanted, ends=frozenset(known.welcome.stop))
        transcript = Detokenizer(tokenizer, len(request.prompt), args.stop)
        for piece in _pieces(remote.stream(request, done), transcript, request.prompt, done):
            if not args.as_json:
                click.echo(piece, nl=False)
    if args.as_json:
        facts = {"text": transcript.text, **facts_of(done), "device": facts_of(known.device)}
        print_json({**facts, "drafting": facts_of(known.welcome.drafting), "reason": known.welcome.reason})
        return
    click.echo()
    if done.own:
        lossy = f"{len(done.own)} tokens are the drafter's own, the server was silent"
        tell(args.settings, f"LOSSY: {lossy}; --json tells which")


def _pieces(
    stream: Generator[list[int], None, None], transcript: Detokenizer, prompt: Sequence[int], done: EdgeRun
) -> Iterator[str]:
    """Yield the text of a stream of tokens behind a prompt, up to a stop string; forget the tokens behind that."""
    tokens = list(prompt)
    with closing(stream):
        for new in stream:
            tokens += new
            yield transcript.read(tokens)
            if transcript.end is not None:
                break
    yield transcript.finish(tokens)
    if transcript.end is not None:
        done.cut(transcript.end - len(prompt))
