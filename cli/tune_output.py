"""What `tune` found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from .report import Table, facts_of, print_table

if TYPE_CHECKING:
    from ..tuning.engines.compared import TunedChoice
    from ..tuning.engines.look import Looked
    from ..tuning.engines.tune import Tuned
    from ..tuning.engines.tuned_server import TunedServer

Json = dict[str, Any]  # JSON values


def tuned_facts(found: Tuned, serving: TunedServer, warned: Sequence[str]) -> Json:
    """Return what was found as JSON values."""
    from ..engines.command import hidden
    from ..engines.server_engine import written_files

    command = [] if serving.job.url else serving.command(found.start)
    return {
        "engine": serving.job.engine.name,
        "version": found.bundle.version,
        "command": hidden(command),
        "files": written_files(command),
        "start": facts_of(found.start),
        "choices": [facts_of(choice) for choice in found.choices],
        "tried": [facts_of(choice) for choice in found.tried],
        "ways": [{"concurrency": at, **facts_of(way)} for at, own in found.ways.items() for way in own],
        "starts": [facts_of(start) for start in found.bundle.starts()],
        "notes": list(found.notes),
        "warnings": list(warned),
    }


def print_tuned(found: Tuned, serving: TunedServer, warned: Sequence[str]) -> None:
    """Print the best drafts, what to know of them, and the command that makes them."""
    from ..engines.command import typed
    from ..engines.server_engine import written_files
    from ..planner.engines.served import PLAIN

    guessed = [one for one in found.choices if not one.way.is_measured]
    print_table(ran_table((*found.tried, *guessed), found.choices))
    for note in found.notes:
        click.echo(f"note: {note}")
    for line in warned:
        click.echo(f"warning: {line}")
    if found.start.source == PLAIN:
        click.echo("do not speculate: no drafts are faster here than plain decoding")
    elif serving.job.url:
        click.echo(f"draft {found.start.longest} tokens: restart the server at {serving.job.url} so")
    else:
        source = next(one for one in serving.sources() if one.name == found.start.source)
        click.echo(f"draft: {found.start.label} ({serving.job.engine.name}: {source.checked})")
    if not serving.job.url:
        command = serving.command(found.start)
        for name, text in written_files(command).items():
            click.echo(f"{name}:\n{text}")
        click.echo(typed(command))


def ran_table(ways: Sequence[TunedChoice], choices: Sequence[TunedChoice] = ()) -> Table:
    """Return ways at each concurrency in the order of their speed, and which of them are chosen."""
    chosen = {(one.concurrency, one.way.source, one.way.length) for one in choices}
    shown = sorted(ways, key=lambda one: (one.concurrency, -one.way.tokens_per_s))
    rows = [
        (
            one.concurrency,
            f"{one.way.length} by {one.way.source}" if one.way.length else "none",
            one.way.tokens_per_s,
            one.gain,
            f"{one.interval[0]:.2f} to {one.interval[1]:.2f}" if one.way.length else "",
            one.way.tokens_per_round - 1.0,
            one.way.tpot_ms,
            one.way.ttft_ms,
            "yes" if one.fits else "NO",
            ("" if one.way.is_measured else "predicted, ")
            + ("chosen" if (one.concurrency, one.way.source, one.way.length) in chosen else ""),
        )
        for one in shown
    ]
    columns = (
        *("at once", "drafts", "tokens/s", "x plain", "90 %", "accepted a round", "TPOT ms", "TTFT ms", "within SLO"),
        "",
    )
    return Table(title="what was tried", columns=columns, rows=rows)


def print_looked(found: Looked, title: str) -> None:
    """Print the loads of a server that runs."""
    rows = [
        (
            str(one.concurrency) if one.concurrency else f"{one.rate:g} a second",
            one.tokens_per_s,
            one.tokens_per_s_per_user,
            one.ttft_ms.p50,
            one.ttft_ms.p99,
            one.tpot_ms.p50,
            one.tpot_ms.p99,
            one.e2e_ms.p50,
            one.tokens_per_round,
        )
        for one in found.loads
    ]
    columns = (
        *("at once", "tokens/s", "per user", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99", "whole p50 ms"),
        "tokens a round",
    )
    print_table(Table(title=title, columns=columns, rows=rows))
    for note in found.notes:
        click.echo(f"note: {note}")
