"""`spectune profile` for several devices: all of this machine, or one node of every kind in a Ray cluster."""

from __future__ import annotations

import io
import sys
import traceback
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import click

from ..errors import DeviceError
from .measured import profile_shown
from .option import option
from .report import Table, print_facts, print_json, show, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..tuning.fleet.fleet import FleetJob, Outcome, Tell, Word
    from ..tuning.fleet.turns import DeviceTurn
    from .report import Settings

ray_address = option(
    "Profile one node of every kind in a Ray cluster.",
    *("--ray", "ray_address"),
    is_flag=False,
    flag_value="auto",
    metavar="[ADDRESS]",
)


def profile_fleet(settings: Settings, job: FleetJob, address: str | None, *, as_json: bool) -> None:
    """Profile every device of this machine in its current state, or of a cluster at `address`, and print the results.

    `as_json` prints one JSON object a line for each device. DeviceError: at least one device failed; the others were
    profiled and printed.
    """
    from ..tuning.fleet.fleet import profile_all

    def say(word: Word) -> None:
        where, what, share = word
        tell(settings, f"{where}: {what}" + (f", {share:.0%}" if share else ""))

    tried, failed = [], []
    try:
        outcomes = profile_all(job, say) if address is None else _of_cluster(settings, job, say, address)
        for outcome in outcomes:
            _print_outcome(settings, outcome, as_json=as_json)
            tried.append(outcome.where)
            if outcome.error is not None:
                failed.append(outcome.where)
    except KeyboardInterrupt:
        click.echo("stopped; what was done is kept, and the same command resumes there", err=True)
        raise
    if failed:
        raise DeviceError(
            f"{len(failed)} of {len(tried)} devices could not be profiled: {', '.join(failed)}; "
            "mend what is said above and run the same command again"
        )


def print_turns(turns: Sequence[DeviceTurn], *, as_json: bool) -> None:
    """Print which nodes a cluster would be profiled on."""
    facts = {"turns": [{"kind": turn.kind, "nodes": [node.label for node in turn.nodes]} for turn in turns]}
    rows = [(turn.kind, turn.node.label, len(turn.nodes) - 1) for turn in turns]
    table = Table(title="would be profiled", columns=("kind", "on", "others alike"), rows=rows)
    print_facts(facts, [table], as_json=as_json)


def _of_cluster(settings: Settings, job: FleetJob, say: Tell, address: str) -> list[Outcome]:
    """Return what became of every kind; Ray prints a lost node's log on stdout, which is for results only."""
    from ..tuning.fleet.turns import profile_cluster

    with redirect_stdout(sys.stderr if settings.verbose else io.StringIO()):
        return list(profile_cluster(job, say, address))


def _print_outcome(settings: Settings, outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        print_json({"where": outcome.where, "failure": outcome.failure} | (outcome.facts or {}))
    elif outcome.facts is not None:
        click.secho(outcome.where, bold=True)
        show(profile_shown(outcome.facts))
    if at := (outcome.facts or {}).get("done_before"):
        click.echo(f"{outcome.where}: measured {at} by a run that did not finish, not anew; --fresh does", err=True)
    if outcome.error is not None:
        click.echo(f"{outcome.where}: {outcome.failure}", err=True)
        if settings.verbose:
            traceback.print_exception(outcome.error)
