"""`validate --bundle`: what `tune` chose, raced against the server as it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options
from .report import Settings, Table, TimeLeft, facts_of, print_json, print_table, progress, tell

if TYPE_CHECKING:
    from ..engines.bundle import Bundle
    from ..profiler.prompt import Prompt
    from ..tuning.engines.served_race import Raced
    from ..tuning.engines.tuned_server import ServerJob


def validate_server(
    settings: Settings, file: Path, command: Sequence[str], prompts: Sequence[Prompt], rounds: int, *, as_json: bool
) -> None:
    """Race a bundle's choice against the command as it is, and print what it gains."""
    from ..engines.bundle import read_bundle
    from ..errors import RequestError
    from ..tuning.engines.honest import unsure, warnings_before, warnings_behind
    from ..tuning.engines.served_race import BEFORE, race
    from ..tuning.engines.tuned_server import TunedServer
    from .tune import ended_by_signals

    bundle = read_bundle(file)
    if bundle.chosen is None:
        raise RequestError(f"{file} is of a run that did not end; let spectune tune --bundle {file} end it")
    job = _job(bundle, command, prompts)
    server = TunedServer(job, bundle.version)
    before, after = server.counted(command), server.command(bundle.chosen)
    if before == after:
        raise RequestError(f"tune chose {bundle.chosen.label}, and so the command decodes; there is nothing to compare")
    for line in warnings_before(job):
        tell(settings, f"warning: {line}")
    loads = len(job.concurrencies) * job.requests
    tell(settings, f"{2 * rounds} starts of the server, {loads} requests behind each")
    with ended_by_signals(), progress(settings) as report:
        found, ran = race(server, before, after, job.concurrencies, rounds=rounds, progress=TimeLeft(report))
    warned = [*warnings_behind(ran, job.sampling, BEFORE)]
    for one in found:
        warned += unsure(one.concurrency, one.gain, one.interval, job.requests)
    if as_json:
        rows = [facts_of(one) for one in found]
        facts = {"engine": job.engine.name, "start": facts_of(bundle.chosen), "rows": rows, "warnings": warned}
        print_json(facts)
        return
    print_table(_table(found))
    for one in found:
        if not one.is_worth:
            low, high = one.interval
            click.echo(
                f"note: at {one.concurrency} at once it was not worth it: {low:.2f} to {high:.2f} times as it was"
            )
    for line in warned:
        click.echo(f"warning: {line}")


def _job(bundle: Bundle, command: Sequence[str], prompts: Sequence[Prompt]) -> ServerJob:
    """Return the loads of a bundle for a command.

    Raises:
        RequestError: the bundle is of another command.
    """
    from ..engines.command import hidden, typed
    from ..engines.load import Sampling
    from ..engines.table import ENGINES
    from ..errors import RequestError
    from ..profiler.records.wire import from_json
    from ..tuning.engines.tuned_server import ServerJob

    setup = bundle.setup
    if tuple(hidden(command)) != setup.command:
        raise RequestError(f"the bundle is of another command: {typed(setup.command)}; give that behind --")
    return ServerJob(
        engine=ENGINES[setup.engine],
        command=tuple(command),
        prompts=prompts,
        sampling=from_json(Sampling, setup.sampling),
        concurrencies=setup.concurrencies,
        requests=setup.requests,
        longest=setup.longest,
        drafters=dict(setup.drafters),
        key=options.api_key(),
    )


def _table(found: Sequence[Raced]) -> Table:
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
