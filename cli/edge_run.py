"""`spectune edge run`: a device that drafts for a target elsewhere."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from ..errors import RequestError
from . import options
from .edge_serve import PORT, TOKEN
from .report import facts_of, print_json, tell
from .settings import Settings

INTRODUCTION_S = 60.0  # the first device of its kind waits for a plan


def _address(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `host`."""
    read = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", text)
    if read is None or not 0 < int(read[3] or PORT) < 65536:
        raise click.BadParameter(f"{text!r} is no HOST:PORT; write for example 192.168.1.5:{PORT} or [::1]:{PORT}")
    return read[1] or read[2], int(read[3] or PORT)


@click.command()
@click.option("--server", required=True, metavar="HOST[:PORT]", callback=_address, help="Where the target is.")
@click.option(
    "--drafter", required=True, metavar="PATH", type=click.Path(path_type=Path), help="Folder of the drafter."
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
    drafter: Path,
    prompt: str,
    device: str,
    dtype: str,
    temperature: float,
    stop: tuple[str, ...],
    max_new_tokens: int,
    seed: int,
    timeout_s: float,
    fallback: int,
    as_json: bool,
) -> None:
    """Decode a prompt with a drafter here and the target on a server.

    The text is the target's own. The server says how to draft, and stderr why. What goes missing on the way is asked
    for again. With --fallback the drafter goes on alone where the server was asked in vain eight times: those tokens
    are not the target's, and it is said which.

    \b
        spectune edge run --server host:8322 --drafter path/to/small --prompt "def main():"
        spectune edge run --server host --drafter path/to/small --prompt - --temperature 0.8 --json < prompt.txt
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise RequestError("the prompt is empty; write some text")
    from ..profiler.device import detect
    from ..profiler.identity import identify
    from ..runtime.edge.device import EdgeRun, Patience, RemoteTarget
    from ..runtime.edge.introduction import draft_ms_of, introduce
    from ..runtime.edge.link import TcpLink
    from ..runtime.edge.messages import Hello
    from ..runtime.models.loading import load_model, load_tokenizer
    from ..runtime.requests import Request
    from ..runtime.transcript import Transcript
    from ..tuning.family import torch_device

    here = detect(device)
    model = load_model(str(drafter), dtype=here.dtype_for(dtype), device=torch_device(here))
    tokenizer = load_tokenizer(str(drafter))
    identity = identify(drafter)
    hello = Hello(
        drafter=identity.key,
        draft_ms=draft_ms_of(model),
        tokenizer=identity.tokenizer_hash,
        token=os.environ.get(TOKEN, ""),
    )
    link = TcpLink(*server, greeting=lambda: hello, connect_s=timeout_s)
    try:
        known = introduce(link, hello, timeout_s=max(timeout_s, INTRODUCTION_S))
        tell(settings, known.welcome.reason)
        request = Request(
            prompt=tuple(tokenizer(text)["input_ids"]),
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            stop=frozenset(known.welcome.stop),
        )
        remote = RemoteTarget(
            model,
            link,
            known.welcome.drafting,
            most_drafted=known.welcome.most_drafted,
            patience=Patience(timeout_s=timeout_s, fallback=fallback),
        )
        done, tokens = EdgeRun(), list(request.prompt)
        transcript, stream = Transcript(tokenizer, len(tokens), stop), remote.stream(request, done)
        for new in stream:
            tokens += new
            _show(transcript.read(tokens), as_json)
            if transcript.end is not None:
                break
        stream.close()
        _show(transcript.finish(tokens), as_json)
    finally:
        link.close()
    if as_json:
        facts = {"text": transcript.text, **facts_of(done), "device": facts_of(known.device)}
        print_json({**facts, "drafting": facts_of(known.welcome.drafting), "reason": known.welcome.reason})
        return
    click.echo()
    if done.own:
        tell(
            settings, f"LOSSY: {len(done.own)} tokens are the drafter's own, the server was silent; --json tells which"
        )


def _show(piece: str, as_json: bool) -> None:
    if not as_json:
        click.echo(piece, nl=False)
