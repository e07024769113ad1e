"""`spectune tune`: which drafts a server that people run should make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import draft_models, options, raced, servers
from .command import Command
from .prompts import named_prompts
from .report import Settings, print_json, tell
from .tune_output import tuned_facts

if TYPE_CHECKING:
    from ..planner.engines.served_choice import LatencyBounds

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


@click.command(
    cls=Command,
    basic=(
        "engine",
        "prompts",
        "concurrency",
        "draft-model",
        "drafter",
        "slo",
        "starts",
        "requests",
        "max-new-tokens",
        "bundle",
    ),
)
@servers.command
@click.option("--engine", required=True, type=click.Choice(servers.NAMES), help="Whose server the command starts.")
@servers.url
@options.prompts
@options.sample
@click.option(
    "--concurrency",
    "batches",
    default="1,4,8",
    show_default=True,
    callback=options.counts,
    metavar="N,N,...",
    help="Requests in flight at once.",
)
@click.option(
    "--rate",
    "rates",
    default="",
    callback=rates_of,
    metavar="R,R,...",
    help="With --server: requests per second, sent at random moments.",
)
@draft_models.drafters
@options.slo
@servers.loads
@options.max_new_tokens
@click.option(
    "--temperature", default=0.0, show_default=True, type=click.FloatRange(0.0), help="That requests ask for."
)
@click.option(
    "--rounds", default=0, show_default=True, type=click.IntRange(0), help="Race the choice so often, as validate does."
)
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write all measurements there, without keys and prompts, and resume from it.",
)
@options.seed
@options.store
@options.as_json
@click.pass_obj
def tune(
    settings: Settings,
    /,
    command: tuple[str, ...],
    engine: str,
    url: str | None,
    prompts: Path | None,
    sample: int | None,
    rates: tuple[float, ...],
    bounds: LatencyBounds | None,
    starts: int,
    rounds: int,
    bundle: Path | None,
    seed: int,
    store: str | None,
    as_json: bool,
    temperature: float,
    **asked: Any,  # of the loads
) -> None:
    """Find the drafts that a server should make.

    COMMAND starts the server. It is started a few times with other drafts, and the prompts are sent to it over HTTP.
    The result is the same command with the best speculative options, for each concurrency, or plain decoding where
    that is faster. It does what `profile`, `plan` and, with --rounds, `validate` do of a server. An interrupted run
    resumes. API keys come from SPECTUNE_API_KEY or OPENAI_API_KEY. Of SGLang and TensorRT-LLM all this ran on a
    scripted server alone; DFLASH, DSPARK, MTP layers and EAGLE heads of most engines are parsed only (docs/tune.md).

    \b
        spectune tune --engine llama.cpp --prompts traffic.jsonl -- llama-server -m target.gguf -md draft.gguf -np 8
        spectune tune --engine vllm --concurrency 1,8,32 --bundle out.json -- vllm serve MODEL
    """
    from ..db import open_store
    from ..planner.engines.served_choice import LatencyBounds

    if rates and url is None:
        raise click.UsageError("--rate is of a server that runs; give it with --server URL.")
    servers.require_one_way(command, url)
    if url is not None:
        options.require_untyped(OF_STARTS, "is of a server that tune starts; give its command behind --.")
    used = named_prompts(settings, prompts, "evaluation", sample=sample, seed=seed)
    job = servers.job_of(engine, command, url, used, {**asked, "temperatures": (temperature,)})
    with open_store(store) as opened:
        if url is not None:
            servers.look_at(settings, job, opened, rates=rates, seed=seed, as_json=as_json)
            return
        found, serving = servers.measured(settings, job, starts, bounds or LatencyBounds(), opened, file=bundle)
        same = raced.same_as_it_was(found, serving) if rounds else ""
        found = replace(found, notes=(*found.notes, f"not raced: {same}")) if same else found
        if not as_json:
            servers.print_choice(found, serving, as_json=False)
        tell(settings, f"kept in {opened.url}" + ("" if bundle is None else f", written to {bundle}"))
    facts = {**tuned_facts(found, serving, servers.warned_of(found, serving.job)), **({"race": None} if rounds else {})}
    try:
        if rounds and not same:
            rows, warned = raced.race_choice(settings, found, serving, rounds)
            facts["race"] = raced.race_facts(rows, warned)
            if not as_json:
                raced.print_race(rows, warned)
    finally:  # a race that fails leaves the choice
        if as_json:
            print_json(facts)
