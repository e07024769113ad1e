"""`validate` of a server: a plan's choice raced against the command as it is, or what runs against what was planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from . import options
from .report import Settings, Table, TimeLeft, facts_of, print_json, print_table, progress, tell
from .servers import ended_by_signals

if TYPE_CHECKING:
    from ..engines.bundle import Trial
    from ..engines.server import ServerTimeouts
    from ..profiler.prompt import Prompt
    from ..tuning.engines.served_race import Raced
    from ..tuning.engines.tune import Tuned
    from ..tuning.engines.tuned_server import TunedServer

Json = dict[str, Any]  # JSON values


def validate_server(
    settings: Settings,
    found: Tuned,
    command: Sequence[str],
    prompts: Sequence[Prompt],
    rounds: int,
    limits: ServerTimeouts,
    *,
    as_json: bool,
) -> None:
    """Race a plan's choice against the command as it is, and print what it gains."""
    from ..errors import RequestError
    from ..tuning.engines.honest import warnings_before
    from ..tuning.engines.tuned_server import TunedServer, job_of

    job = job_of(found.bundle, command, prompts, options.api_key(), limits)
    server = TunedServer(job, found.bundle.version)
    if same := same_as_it_was(found, server):
        raise RequestError(same)
    for line in warnings_before(job):
        tell(settings, f"warning: {line}")
    rows, warned = race_choice(settings, found, server, rounds)
    if as_json:
        print_json({"engine": job.engine.name, "start": facts_of(found.start), **race_facts(rows, warned)})
    else:
        print_race(rows, warned)


def same_as_it_was(found: Tuned, server: TunedServer) -> str:
    """Return that a choice is the command as it is; "" where it is not."""
    if server.counted(server.job.command) != server.command(found.start):
        return ""
    return f"tune chose {found.start.label}, and so the command decodes; there is nothing to compare"


def race_choice(
    settings: Settings, found: Tuned, server: TunedServer, rounds: int
) -> tuple[tuple[Raced, ...], tuple[str, ...]]:
    """Race a choice against the command as it is, and return what it gains and warnings."""
    from ..tuning.engines.honest import named_by_source, unsure, warnings_behind
    from ..tuning.engines.served_race import BEFORE, race

    job, before, after = server.job, server.counted(server.job.command), server.command(found.start)
    requests = len(job.concurrencies) * job.requests
    tell(settings, f"{2 * rounds} starts of the server, {requests} requests behind each")
    with ended_by_signals(), progress(settings) as report:
        ran = race(server, before, after, job.concurrencies, rounds=rounds, progress=TimeLeft(report))
    warned = [*ran.notes, *warnings_behind(named_by_source(ran.trials), job.sampling, BEFORE)]
    for one in ran.rows:
        warned += unsure(one.concurrency, one.gain, one.interval, job.requests)
    return ran.rows, tuple(warned)


def race_facts(rows: Sequence[Raced], warned: Sequence[str]) -> Json:
    """Return a race's results as JSON values."""
    return {"rows": [{**facts_of(one), "is_worth": one.is_worth} for one in rows], "warnings": list(warned)}


def print_race(rows: Sequence[Raced], warned: Sequence[str]) -> None:
    """Print a race's results."""
    print_table(_raced_table(rows))
    for one in rows:
        if not one.is_worth:
            low, high = one.interval
            click.echo(
                f"note: at {one.concurrency} at once it was not worth it: {low:.2f} to {high:.2f} times as it was"
            )
    for line in warned:
        click.echo(f"warning: {line}")


def validate_url(
    settings: Settings, found: Tuned, prompts: Sequence[Prompt], limits: ServerTimeouts, *, as_json: bool
) -> None:
    """Measure a server that runs against what its plan expects of the drafts that it makes."""
    from dataclasses import replace

    from ..engines.server import reached
    from ..tuning.engines.loads import words_of
    from ..tuning.engines.look import look
    from ..tuning.engines.tuned_server import job_of

    job = replace(job_of(found.bundle, (), prompts, options.api_key(), limits), concurrencies=tuple(found.ways))
    with ended_by_signals(), progress(settings) as report:
        server = reached(job.engine, job.url, job.limits, model=job.model, key=job.key)
        ran = look(job, server, report, words=words_of(found.bundle.trials))
    rows = [_beside_plan(found, trial, ran.trials) for trial in ran.trials]
    if as_json:
        print_json({"engine": job.engine.name, "rows": rows})
        return
    columns = ("at once", "drafts", "tokens/s", "at the plan's pace", "planned tokens/s", "90 %", "the plan drafts")
    shown = [
        tuple(f"{one[0]:.1f} to {one[1]:.1f}" if isinstance(one, tuple) else one for one in row.values())
        for row in rows
    ]
    print_table(Table(title="what runs, and what was planned of it", columns=columns, rows=shown))
    if any(row["length"] != row["chosen_length"] for row in rows):
        click.echo("note: the server drafts otherwise than the plan; restart it as the plan says, and run this again")


def _beside_plan(found: Tuned, trial: Trial, looked: Sequence[Trial]) -> Json:
    """Return a load of what runs beside its plan; the sentinel scales it to the pace of the plan's loads."""
    from ..tuning.engines.ran import paces_of

    concurrency, planned = trial.concurrency, found.bundle.trials
    paces = paces_of((*planned, *looked))
    length = trial.start.at(concurrency)
    way = next((one for one in found.ways[concurrency] if one.length == length), None)
    slower = paces.over(trial, [one for one in planned if one.concurrency == concurrency])
    return {
        "concurrency": concurrency,
        "length": length,
        "measured_tokens_per_s": trial.load.steady_tokens_per_s,
        "at_pace_tokens_per_s": slower * trial.load.steady_tokens_per_s,
        "planned_tokens_per_s": None if way is None else way.tokens_per_s,
        "interval": None if way is None else way.interval,
        "chosen_length": next(one.way.length for one in found.choices if one.concurrency == concurrency),
    }


def _raced_table(found: Sequence[Raced]) -> Table:
    rows = [
        (
            one.concurrency,
            one.before,
            one.after,
            one.gain,
            f"{one.interval[0]:.2f} to {one.interval[1]:.2f}",
            "yes" if one.is_worth else "no",
        )
        for one in found
    ]
    columns = ("at once", "as it was tokens/s", "the choice tokens/s", "gain", "90 %", "worth it")
    return Table(title="the choice against the server as it was, started in turns", columns=columns, rows=rows)
