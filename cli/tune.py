"""`spectune tune`: which drafts a server that people run should make."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from . import draft_models, options
from .command import Command
from .prompts import named_prompts
from .report import Settings, TimeLeft, facts_of, print_json, progress, tell
from .tune_output import print_looked, print_tuned, tuned_facts

if TYPE_CHECKING:
    from ..engines.bundle import Bundle
    from ..planner.engines.served_choice import LatencyBounds
    from ..tuning.engines.tuned_server import ServerJob

ENGINES = ("llama.cpp", "vllm")  # a test compares them
REQUESTS = 16  # of a load, or twice the largest concurrency


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
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("--engine", required=True, type=click.Choice(ENGINES), help="Whose server the command starts.")
@click.option("--server", metavar="URL", help="Measure the server that runs there, which is never stopped.")
@options.prompts
@options.sample
@click.option(
    "--concurrency",
    "concurrencies",
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
@click.option(
    "--slo",
    "bounds",
    metavar="METRIC<=Nms,...",
    callback=options.latency_bounds,
    help="Mean latencies to keep: tpot<=20ms,ttft<=500ms.",
)
@click.option("--starts", default=8, show_default=True, type=click.IntRange(2), help="Starts of the server at most.")
@click.option(
    "--requests",
    type=click.IntRange(1),
    metavar="N",
    help="Requests of each load; 16, or twice the largest concurrency, unless given.",
)
@click.option("--longest", default=8, show_default=True, type=click.IntRange(1, 64), help="Drafted tokens at most.")
@options.max_new_tokens
@click.option(
    "--temperature", default=0.0, show_default=True, type=click.FloatRange(0.0), help="That requests ask for."
)
@click.option("--ignore-eos", is_flag=True, help="Let every answer have --max-new-tokens tokens.")
@click.option("--model-name", default="", metavar="NAME", help="What requests call the model; else the first served.")
@click.option(
    "--start-timeout", "start_s", default=1800.0, show_default=True, type=click.FloatRange(1.0), help="Seconds."
)
@click.option(
    "--stall-timeout",
    "stall_s",
    default=600.0,
    show_default=True,
    type=click.FloatRange(1.0),
    help="Seconds without a byte of an answer.",
)
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write all measurements there, without keys and prompts, and resume from it.",
)
@options.seed
@options.as_json
@click.pass_obj
def tune(
    settings: Settings,
    /,
    command: tuple[str, ...],
    engine: str,
    server: str | None,
    prompts: Path | None,
    sample: int | None,
    concurrencies: tuple[int, ...],
    rates: tuple[float, ...],
    drafters: dict[str, str],
    bounds: LatencyBounds | None,
    starts: int,
    requests: int | None,
    longest: int,
    max_new_tokens: int,
    temperature: float,
    ignore_eos: bool,
    model_name: str,
    start_s: float,
    stall_s: float,
    bundle: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Find the drafts that a server should make.

    COMMAND starts the server. It is started a few times with other drafts, and the prompts are sent to it over HTTP.
    The result is the same command with the best speculative options, for each concurrency, or plain decoding where
    that is faster. An interrupted run resumes from its bundle. API keys come from SPECTUNE_API_KEY or OPENAI_API_KEY.

    \b
        spectune tune --engine llama.cpp --prompts traffic.jsonl -- llama-server -m target.gguf -md draft.gguf -np 8
        spectune tune --engine vllm --concurrency 1,8,32 --bundle out.json -- vllm serve MODEL
    """
    from ..engines.load import Sampling
    from ..engines.server import Limits
    from ..engines.table import ENGINES as KNOWN
    from ..tuning.engines.tuned_server import ServerJob

    if rates and server is None:
        raise click.UsageError("--rate is of a server that runs; give it with --server URL.")
    if bool(command) == bool(server):
        raise click.UsageError("give the server's command behind --, or --server URL of one that runs.")
    job = ServerJob(
        engine=KNOWN[engine],
        command=command,
        prompts=named_prompts(settings, prompts, "evaluation", sample=sample, seed=seed),
        sampling=Sampling(max_tokens=max_new_tokens, temperature=temperature, ignore_eos=ignore_eos),
        concurrencies=tuple(sorted(concurrencies)),
        requests=requests or max(REQUESTS, 2 * max(concurrencies)),
        longest=longest,
        drafters=drafters,
        limits=Limits(start_s=start_s, stall_s=stall_s),
        model=model_name,
        key=options.api_key(),
    )
    with ended_by_signals():
        if server is not None:
            _look(settings, job, server, rates, seed, as_json=as_json)
        else:
            _tune(settings, job, bundle, bounds, starts, as_json=as_json)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that no server is left behind."""

    def end(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tune(
    settings: Settings,
    job: ServerJob,
    file: Path | None,
    bounds: LatencyBounds | None,
    starts: int,
    *,
    as_json: bool,
) -> None:
    from ..planner.engines.served_choice import LatencyBounds
    from ..profiler.records.wire import to_json
    from ..report.file import require_writable, write_whole
    from ..tuning.engines.honest import named, unsure, warnings_before, warnings_behind
    from ..tuning.engines.tune import TuneRequest, tune
    from ..tuning.engines.tuned_server import TunedServer

    require_writable(file)
    held = _held(settings, job, file)
    serving = TunedServer(job, held.version)
    request = TuneRequest(
        concurrencies=job.concurrencies, longest=job.longest, most_starts=starts, bounds=bounds or LatencyBounds()
    )
    for line in warnings_before(job):
        tell(settings, f"warning: {line}")
    loads = len(job.concurrencies)
    tell(settings, f"at most {starts} starts of the server, {loads} loads of {job.requests} requests each")

    def save(bundle: Bundle) -> None:
        if file is not None:
            write_whole(file, to_json(bundle))

    try:
        with progress(settings) as report:
            found = tune(request, serving, held, save=save, progress=TimeLeft(report, "at most"))
    except KeyboardInterrupt:
        is_saved = file is not None and file.exists()
        resume = f"resume with the same command and --bundle {file}" if is_saved else "nothing was saved"
        tell(settings, f"{resume}{'' if file is not None else '; with --bundle FILE a run resumes'}")
        raise
    warned = [*warnings_behind(named(found.bundle.trials), job.sampling)]
    for one in found.choices:
        warned += unsure(one.concurrency, one.gain, one.interval, job.requests)
    if as_json:
        print_json(tuned_facts(found, serving, warned))
    else:
        print_tuned(found, serving, warned)
    if file is not None:
        tell(settings, f"wrote {file}")


def _held(settings: Settings, job: ServerJob, file: Path | None) -> Bundle:
    """Return what an interrupted run of the same setup measured, or an empty bundle."""
    from importlib.metadata import version

    from ..engines.bundle import Bundle, read_bundle
    from ..errors import RequestError

    empty = Bundle(spectune=version("spectune"), setup=job.setup)
    if file is None or not file.exists():
        return empty
    found = read_bundle(file)
    if found.setup != job.setup:
        raise RequestError(f"{file} is of another command, prompts or loads; give another file with --bundle")
    if found.chosen is not None:
        raise RequestError(f"{file} is of a run that ended; give another file with --bundle, or remove it")
    tell(settings, f"resuming: {len(found.trials)} loads ran before")
    return found


def _look(settings: Settings, job: ServerJob, url: str, rates: tuple[float, ...], seed: int, *, as_json: bool) -> None:
    """Measure a server that runs, without a restart."""
    from ..engines.server import reached
    from ..tuning.engines.honest import warnings_before
    from ..tuning.engines.look import look

    for line in warnings_before(job):
        tell(settings, f"warning: {line}")
    with progress(settings) as report:
        server = reached(job.engine, url, job.limits, model=job.model, key=job.key)
        found = look(job, server, report, rates=rates, seed=seed)
    if as_json:
        print_json({"engine": job.engine.name, "loads": [facts_of(one) for one in found.loads], "notes": found.notes})
    else:
        print_looked(found, f"{job.engine.name} {found.version} at {url}")
