"""`spectune edge run`: a device that drafts for a target elsewhere."""

from __future__ import annotations

import os
import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from ..errors import RequestError
from . import options
from .command import Command
from .edge_serve import PORT, TOKEN
from .report import Settings, facts_of, print_json, tell

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from ..runtime.edge.device import EdgeRun
    from ..runtime.engine.detokenizer import Detokenizer


def _address(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, int]:
    read = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    if read is None or not 0 < int(read[3] or PORT) < 65536:
        raise click.BadParameter(f"{text!r} is no HOST:PORT; write for example 192.168.1.5:{PORT} or [::1]:{PORT}")
    return read[1] or read[2], int(read[3] or PORT)


@click.command(
    cls=Command,
    basic=("server", "drafter", "prompt", "max-new-tokens", "temperature", "stop", "device", "dtype", "seed", "json"),
)
@click.option("--server", required=True, metavar="HOST[:PORT]", callback=_address, help="Where the target is.")
@click.option(
    "--drafter", "--draft-model", "named", required=True, metavar="MODEL", help=f"The drafter: {options.MODEL_FORMS}."
)
@click.option("--prompt", required=True, metavar="TEXT", help="What to continue; - reads it from stdin.")
@options.device
@options.dtype
@options.temperature
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@options.max_new_tokens
@options.seed
@click.option("--timeout-s", default=2.0, show_default=True, type=click.FloatRange(0.01), help="Before asking again.")
@click.option(
    "--fallback",
    default=0,
    show_default=True,
    metavar="N",
    type=click.IntRange(0),
    help="Tokens the drafter says alone where the server is silent: not the target's own.",
)
@options.as_json
@click.pass_obj
def run(
    settings: Settings,
    /,
    server: tuple[str, int],
    named: str,
    prompt: str,
    device: str,
    dtype: str,
    stop: tuple[str, ...],
    timeout_s: float,
    fallback: int,
    as_json: bool,
    **generation: Any,  # click gives other fields of GenerationSettings
) -> None:
    """Decode a prompt with a drafter here and the target on a server.

    The text is the target's own. The server says how to draft, and stderr why. Lost messages are sent again. With
    --fallback the drafter continues alone after eight requests without an answer. Those tokens are not the
    target's, and you see which.

    \b
        spectune edge run --server host:8322 --drafter path/to/small --prompt "def main():"
        spectune edge run --server host --drafter path/to/small --prompt - --temperature 0.8 --json < prompt.txt
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise RequestError("the prompt is empty; write some text")
    from ..profiler.device import detect
    from ..profiler.hub import resolve_model
    from ..profiler.identity import identify
    from ..runtime.edge.device import EdgeRun
    from ..runtime.edge.joining import joined
    from ..runtime.edge.patience import RetryPolicy
    from ..runtime.engine.detokenizer import Detokenizer
    from ..runtime.engine.prompts import request_of
    from ..runtime.engine.settings import GenerationSettings
    from ..runtime.models.formats import draft_role
    from ..runtime.models.loading import load_model, load_tokenizer
    from ..runtime.models.vocabulary import vocabulary_hash
    from ..tuning.family import torch_device

    drafter = resolve_model(named)
    wanted, identity = GenerationSettings(stop=stop, **generation), identify(drafter)
    if draft_role(drafter) != "draft":
        raise RequestError(
            f"{identity.name} reads what the target computes, which a device has not; take a draft model"
        )
    here, tokenizer, done = detect(device), load_tokenizer(str(drafter)), EdgeRun()
    model = load_model(str(drafter), dtype=here.dtype_for(dtype), device=torch_device(here))
    secret, patience = os.environ.get(TOKEN, ""), RetryPolicy(timeout_s=timeout_s, fallback=fallback)
    own = vocabulary_hash(tokenizer)
    with joined(server, identity, model, tokenizer=own, token=secret, patience=patience) as (remote, known):
        tell(settings, known.welcome.reason)
        asked = request_of(tokenizer, text, wanted, ends=frozenset(known.welcome.stop))
        transcript = Detokenizer(tokenizer, len(asked.prompt), stop)
        for piece in _pieces(remote.stream(asked, done), transcript, asked.prompt, done):
            if not as_json:
                click.echo(piece, nl=False)
    if as_json:
        facts = {"text": transcript.text, **facts_of(done), "device": facts_of(known.device)}
        print_json({**facts, "drafting": facts_of(known.welcome.drafting), "reason": known.welcome.reason})
        return
    click.echo()
    if done.own:
        lossy = f"{len(done.own)} tokens are the drafter's own, the server was silent"
        tell(settings, f"LOSSY: {lossy}; --json tells which")


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
