"""Servers that people run: what `profile`, `plan`, `validate` and `tune` do with --server URL or -- COMMAND."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..engines.table import RUNNING, SERVERS
from . import options
from .report import Settings, TimeLeft, facts_of, print_json, print_table, progress, tell
from .tune_output import print_looked, print_tuned, ran_table, tuned_facts

if TYPE_CHECKING:
    from ..db.store import Store
    from ..engines.bundle import Bundle
    from ..planner.engines.served_choice import LatencyBounds
    from ..profiler.prompt import Prompt
    from ..tuning.engines.tune import Tuned
    from ..tuning.engines.tuned_server import ServerJob, TunedServer

REQUESTS = 16  # of a load, or twice the largest concurrency
Json = dict[str, Any]  # JSON values

OF_TIMEOUTS = ("start_s", "stall_s")
OF_LOADS = ("starts", "requests", "longest", "ignore_eos", "model_name", *OF_TIMEOUTS)
NO_SERVER = "is of a server; give one with --engine, and --server URL or -- COMMAND."


def job_of(engine: str, command: Sequence[str], url: str | None, prompts: Sequence[Prompt], asked: Json) -> ServerJob:
    """Return the requested loads; UsageError unless there is a command or a URL, and not both."""
    from ..engines.load import SamplingParams
    from ..engines.server import ServerTimeouts
    from ..tuning.engines.tuned_server import ServerJob

    require_one_way(command, url)
    temperature, *more = asked["temperatures"]
    if more:
        raise click.UsageError("a server is measured at one temperature; profile again for another.")
    return ServerJob(
        engine=SERVERS[engine],
        command=tuple(command),
        prompts=prompts,
        sampling=SamplingParams(
            max_tokens=asked["max_new_tokens"], temperature=temperature, ignore_eos=asked["ignore_eos"]
        ),
        concurrencies=tuple(sorted(asked["batches"])),
        requests=asked["requests"] or max(REQUESTS, 2 * max(asked["batches"])),
        longest=asked["longest"],
        drafters=asked["drafters"],
        limits=ServerTimeouts(start_s=asked["start_s"], stall_s=asked["stall_s"]),
        model=asked["model_name"],
        key=options.api_key(),
        url=(url or "").rstrip("/").removesuffix("/v1"),
    )


def require_one_way(command: Sequence[str], url: str | None) -> None:
    """Raise UsageError unless there is a command or a URL, and not both."""
    if bool(command) == bool(url):
        raise click.UsageError("give the server's command behind --, or --server URL of one that runs.")


def is_server(engine: str | None, command: Sequence[str], url: str | None, stray: str) -> bool:
    """Return whether a command is about a server; UsageError where words are stray, or the engine has no server."""
    if engine is None:
        if command or url:
            told = f"got an unexpected argument {command[0]!r}; {stray}" if command else "--server needs --engine."
            raise click.UsageError(told)
        return False
    is_one = bool(command or url)
    if engine not in (SERVERS if is_one else RUNNING):
        told = "has no server that is measured" if is_one else "does not run here; give --server URL or its -- COMMAND"
        raise click.UsageError(f"{engine} {told}.")
    return is_one


def profile_server(
    settings: Settings, job: ServerJob, starts: int, store: Store, *, fresh: bool, as_json: bool
) -> None:
    """Measure a server that a command starts, keep it, and print what ran."""
    from ..planner.engines.served_choice import LatencyBounds

    found, serving = measured(settings, job, starts, LatencyBounds(), store, fresh=fresh)
    if as_json:
        print_json(tuned_facts(found, serving, warned_of(found, job)))
    else:
        print_table(ran_table(found.tried))
        for note in found.notes:
            click.echo(f"note: {note}")
    tell(settings, f"kept in {store.url}; next: spectune plan --engine {job.engine.name} -- COMMAND")


def measured(
    settings: Settings,
    job: ServerJob,
    starts: int,
    bounds: LatencyBounds,
    store: Store,
    *,
    fresh: bool = False,
    file: Path | None = None,
) -> tuple[Tuned, TunedServer]:
    """Run the loads that are missing, keep each, and return what is best by all of them."""
    from ..profiler.records.wire import to_json
    from ..report.file import require_writable, write_whole
    from ..tuning.engines.honest import warnings_before
    from ..tuning.engines.server_profile import ServerProfile
    from ..tuning.engines.serving import TuneRequest
    from ..tuning.engines.tune import tune
    from ..tuning.engines.tuned_server import TunedServer

    require_writable(file)
    held = _held(job, file)
    kept = ServerProfile(job, store, fresh=fresh)
    if held is not None and held.trials[: len(kept.bundle.trials)] != kept.bundle.trials:  # of another run
        kept = ServerProfile(job, store, fresh=True)
    held = held or kept.bundle
    if held.trials:
        tell(settings, f"resuming: {len(held.trials)} loads ran before")
    serving = TunedServer(job, held.version)
    request = TuneRequest(concurrencies=job.concurrencies, longest=job.longest, most_starts=starts, bounds=bounds)
    for line in warnings_before(job):
        tell(settings, f"warning: {line}")
    loads = len(job.concurrencies)
    tell(settings, f"at most {starts} starts of the server, {loads} loads of {job.requests} requests each")

    def save(bundle: Bundle) -> None:
        if file is not None:
            write_whole(file, to_json(bundle))
        kept.save(bundle)

    try:
        with ended_by_signals(), progress(settings) as report:
            found = tune(request, serving, held, save=save, progress=TimeLeft(report, "at most"))
    except KeyboardInterrupt:
        more = f" --bundle {file}" if file is not None else ""
        tell(settings, f"resume with the same command{more}; what ran is kept in {store.url}")
        raise
    kept.end()
    return found, serving


def _held(job: ServerJob, file: Path | None) -> Bundle | None:
    """Return what an interrupted run of the same setup wrote to a file; None where there is none."""
    from ..engines.bundle import read_bundle
    from ..errors import RequestError

    if file is None or not file.exists():
        return None
    found = read_bundle(file)
    if found.setup != job.setup:
        raise RequestError(f"{file} is of another command, prompts or loads; give another file with --bundle")
    if found.chosen is not None:
        raise RequestError(f"{file} is of a run that ended; give another file with --bundle, or remove it")
    return found


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


def look_at(
    settings: Settings,
    job: ServerJob,
    store: Store,
    *,
    rates: tuple[float, ...] = (),
    seed: int = 0,
    fresh: bool = False,
    as_json: bool,
) -> None:
    """Measure a server that runs, without a restart, keep it, and print what ran."""
    from dataclasses import replace

    from ..engines.server import reached
    from ..tuning.engines.honest import warnings_before
    from ..tuning.engines.loads import words_of
    from ..tuning.engines.look import look, tells_more
    from ..tuning.engines.server_profile import ServerProfile

    for line in warnings_before(job):
        tell(settings, f"warning: {line}")
    with ended_by_signals(), progress(settings) as report:
        server = reached(job.engine, job.url, job.limits, model=job.model, key=job.key)
        kept = ServerProfile(replace(job, model=server.address.model), store, fresh=fresh)
        found = look(job, server, report, rates=rates, seed=seed, words=words_of(kept.bundle.trials))
    trials = (*kept.bundle.trials, *found.trials)
    kept.save(replace(kept.bundle, version=found.version, trials=trials))
    notes = (*found.notes, tells_more(trials))
    if as_json:
        print_json({"engine": job.engine.name, "loads": [facts_of(one) for one in found.loads], "notes": notes})
    else:
        print_looked(replace(found, notes=notes), f"{job.engine.name} {found.version} at {job.url}")
    tell(settings, f"kept in {store.url}")


def stored(
    engine: str, command: Sequence[str], url: str | None, bounds: LatencyBounds, store: Store
) -> tuple[Tuned, TunedServer]:
    """Return the plan of a server by what a store holds of it; nothing is started."""
    from ..engines.command import hidden
    from ..tuning.engines.server_profile import newest_bundle

    require_one_way(command, url)
    place = [url.rstrip("/").removesuffix("/v1")] if url else hidden(command)
    return planned(newest_bundle(engine, place, store), command, bounds)


def planned(bundle: Bundle, command: Sequence[str], bounds: LatencyBounds) -> tuple[Tuned, TunedServer]:
    """Return the plan of a bundle; RequestError where its loads do not tell one."""
    from ..errors import RequestError
    from ..planner.engines.served import PLAIN
    from ..tuning.engines import tuned_server
    from ..tuning.engines.look import NO_PLAIN
    from ..tuning.engines.serving import TuneRequest
    from ..tuning.engines.tune import plan

    setup = bundle.setup
    serving = tuned_server.TunedServer(tuned_server.job_of(bundle, command, (), options.api_key()), bundle.version)
    ran = {trial.concurrency for trial in bundle.trials if trial.start.source == PLAIN}
    if not ran:
        raise RequestError(f"nothing is planned from these loads: {NO_PLAIN}")
    request = TuneRequest(
        concurrencies=tuple(one for one in setup.concurrencies if one in ran), longest=setup.longest, bounds=bounds
    )
    return plan(request, serving, bundle), serving


def print_choice(found: Tuned, serving: TunedServer, *, as_json: bool) -> None:
    """Print a plan with its warnings."""
    warned = warned_of(found, serving.job)
    if as_json:
        print_json(tuned_facts(found, serving, warned))
    else:
        print_tuned(found, serving, warned)


def warned_of(found: Tuned, job: ServerJob) -> list[str]:
    """Return warnings of what would mislead in a plan."""
    from ..tuning.engines.honest import named, unsure, warnings_behind

    warned = [*warnings_behind(named(found.bundle.trials), job.sampling)]
    for one in found.choices:
        warned += unsure(one.concurrency, one.gain, one.interval, job.requests)
    return warned
