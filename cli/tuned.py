"""`validate --bundle`: what `tune` chose, raced against the server as it was."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .report import Settings, Table, facts_of, print_json, print_table, progress, tell

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
    from ..tuning.engines.honest import warnings_before
    from ..tuning.engines.served_race import race
    from ..tuning.engines.tuned_server import TunedServer
    from .tune import ended_by_signals

    bundle = read_bundle(file)
    if bundle.chosen is None:
        raise RequestError(f"{file} is of a run that did not end; let spectune tune --bundle {file} end it")
    job = _job(bundle, command, prompts)
    server = TunedServer(job, bundle.version)
    for line in warnings_before(job):
        tell(settings, f"warning: {line}")
    loads = len(job.concurrencies) * job.requests
    tell(settings, f"{2 * rounds} starts of the server, {loads} requests behind each")
    before = server.counted(command)
    with ended_by_signals(), progress(settings) as report:
        found = race(server, before, server.command(bundle.chosen), job.concurrencies, rounds=rounds, progress=report)
    if as_json:
        print_json({"engine": job.engine.name, "start": facts_of(bundle.chosen), "rows": [facts_of(r) for r in found]})
        return
    print_table(_table(found))
    for one in found:
        if not one.is_worth:
            low, high = one.interval
            click.echo(
                f"note: at {one.concurrency} at once it was not worth it: {low:.2f} to {high:.2f} times as it was"
            )


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
        key=os.environ.get("SPECTUNE_API_KEY") or os.environ.get("OPENAI_API_KEY") or "",
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
