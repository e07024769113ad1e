"""`spectune tune`: which drafts a server that people run should make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..engines.table import SERVERS
from . import options, raced, servers
from .command import Args, command
from .option import choice, option, path_option, whole
from .prompts import named_prompts
from .report import print_json, tell
from .tune_output import tuned_facts

if TYPE_CHECKING:
    from ..planner.engines.served_choice import LatencyBounds
    from ..tuning.engines.tune import Tuned
    from ..tuning.engines.tuned_server import TunedServer

OF_STARTS = ("drafters", "draft_models", "bounds", "starts", "longest", "rounds", "bundle")  # and of what they tell


def rates_of(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[float, ...]:
    """Return requests per second of a text like `0.5,2`."""
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = (0.0,)
    if not all(0.0 < rate < 1e6 for rate in found):
        raise click.BadParameter(f"{text!r} is no rate per second; write for example 0.5,2")
    return found


@dataclass(frozen=True, kw_only=True)
class TuneArgs(Args):
    """What was typed."""

    command: tuple[str, ...] = options.server_command
    engine: str = choice("Whose server the command starts.", sorted(SERVERS), required=True)
    url: str | None = options.url
    prompts: Path | None = options.prompts
    sample: int | None = options.sample
    batches: tuple[int, ...] = option(
        "Requests in flight at once.", "--concurrency", default="1,4,8", metavar="N,N,...", callback=options.counts
    )
    rates: tuple[float, ...] = option(
        "With --server: requests per second, sent at random moments.",
        "--rate",
        absent="",
        metavar="R,R,...",
        callback=rates_of,
    )
    drafters: dict[str, str] = options.drafters
    bounds: LatencyBounds | None = options.slo
    starts: int = options.starts
    requests: int | None = options.requests
    longest: int = options.longest
    ignore_eos: bool = options.ignore_eos
    model_name: str = options.model_name
    start_s: float = options.start_timeout
    stall_s: float = options.stall_timeout
    max_new_tokens: int = options.max_new_tokens
    temperature: float = options.temperature.but(help="That requests ask for.")
    rounds: int = whole("Race the choice so often, as validate does.", least=0, default=0)
    bundle: Path | None = path_option("Write all measurements there, without keys and prompts, and resume from it.")
    seed: int = options.seed
    store: str | None = options.store
    as_json: bool = options.as_json


@command(
    TuneArgs,
    basic="engine prompts concurrency draft-model drafter slo starts requests max-new-tokens bundle",
)
def tune(args: TuneArgs) -> None:
    """Find the drafts that a server should make.

    COMMAND starts the server. It is started a few times with other drafts, and the prompts are sent to it over HTTP.
    The result is the same command with the best speculative options, for each concurrency, or plain decoding where
    that is faster. It does what `profile`, `plan` and, with --rounds, `validate` do of a server. An interrupted run
    resumes. API keys come from SPECTUNE_API_KEY or OPENAI_API_KEY. Of SGLang and TensorRT-LLM all this ran on a
    scripted server alone; DFLASH, DSPARK, MTP layers and EAGLE heads of most engines are parsed only
    (docs/reference/support-matrix.md).

    \b
        spectune tune --engine llama.cpp --prompts traffic.jsonl -- llama-server -m target.gguf -md draft.gguf -np 8
        spectune tune --engine vllm --concurrency 1,8,32 --bundle out.json -- vllm serve MODEL
    """
    from ..db import open_store
    from ..planner.engines.served_choice import LatencyBounds

    if args.rates and args.url is None:
        raise click.UsageError("--rate is of a server that runs; give it with --server URL.")
    servers.require_one_way(args.command, args.url)
    if args.url is not None:
        options.require_untyped(OF_STARTS, "is of a server that tune starts; give its command behind --.")
    used = named_prompts(args.settings, args.prompts, "evaluation", sample=args.sample, seed=args.seed)
    loads = vars(args) | {"temperatures": (args.temperature,)}
    job = servers.job_of(args.engine, args.command, args.url, used, loads)
    with open_store(args.store) as opened:
        if args.url is not None:
            servers.look_at(args.settings, job, opened, rates=args.rates, seed=args.seed, as_json=args.as_json)
            return
        bounds = args.bounds or LatencyBounds()
        found, serving = servers.measured(args.settings, job, args.starts, bounds, opened, file=args.bundle)
        same = raced.same_as_it_was(found, serving) if args.rounds else ""
        found = replace(found, notes=(*found.notes, f"not raced: {same}")) if same else found
        if not args.as_json:
            servers.print_choice(found, serving, as_json=False)
        tell(args.settings, f"kept in {opened.url}" + ("" if args.bundle is None else f", written to {args.bundle}"))
    _race(args, found, serving, is_raced=bool(args.rounds and not same))


def _race(args: TuneArgs, found: Tuned, serving: TunedServer, *, is_raced: bool) -> None:
    """Race the choice, and print what that and the choice are; a race that fails leaves the choice."""
    facts = tuned_facts(found, serving, servers.warned_of(found, serving.job))
    facts |= {"race": None} if args.rounds else {}
    try:
        if is_raced:
            rows, warned = raced.race_choice(args.settings, found, serving, args.rounds)
            facts["race"] = raced.race_facts(rows, warned)
            if not args.as_json:
                raced.print_race(rows, warned)
    finally:
        if args.as_json:
            print_json(facts)
