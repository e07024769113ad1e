"""`spectune promote`, `retire` and `restore`: which plan of a setup counts."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from . import options
from .existing import NOTHING, require_there
from .report import print_json, tell
from .settings import Settings

if TYPE_CHECKING:
    from ..db.plans import PlanRow
    from ..db.store import Store

plan_number = click.argument("number", metavar="ID", type=click.IntRange(1))
reason = click.option("--reason", required=True, metavar="TEXT", help="Why, for those who read it later.")

Decide = Callable[["Store", str], None]  # in a store, by somebody


def _decision(run: Callable[..., None]) -> click.Command:
    """Return a command that takes what all decisions take."""
    for given in (click.pass_obj, options.as_json, options.store, reason, plan_number):
        run = given(run)
    return click.command()(run)


@_decision
def promote(settings: Settings, number: int, reason: str, store: str | None, as_json: bool) -> None:
    """Let a plan count, whatever is planned later.

    Of the plans for one device, target, workload and temperature the one promoted last counts; without one, the
    newest that is not retired. `spectune list` shows which.

    \b
        spectune promote 3 --reason "validated on two hosts"
    """
    _decide(lambda opened, by: opened.promote_plan(number, by, reason), number, settings, store, as_json)


@_decision
def retire(settings: Settings, number: int, reason: str, store: str | None, as_json: bool) -> None:
    """Let a plan count no more.

    The plan that counted before it counts again, if there is one. Nothing is deleted: a retired plan can still be
    named by its number, and restored.

    \b
        spectune retire 3 --reason "slower than plain decoding since the new driver"
    """
    _decide(lambda opened, by: opened.retire_plan(number, by, reason), number, settings, store, as_json)


@_decision
def restore(settings: Settings, number: int, reason: str, store: str | None, as_json: bool) -> None:
    """Let a retired plan take part again.

    It counts if it is the newest of its setup and none is promoted, or once it is promoted again.

    \b
        spectune restore 3 --reason "the old driver is back"
    """
    _decide(lambda opened, by: opened.restore_plan(number, by, reason), number, settings, store, as_json)


def _decide(decide: Decide, number: int, settings: Settings, store: str | None, as_json: bool) -> None:
    """Change a plan's state, and tell it with the plan that counts for its setup now."""
    from ..db.store import open_store

    require_there(store, NOTHING)
    with open_store(store) as opened:
        decide(opened, _somebody(store))
        row, url = opened.plan_row(number), opened.url
        counting, note = _counting(opened, row), opened.note
    if note:
        tell(settings, note)
    if as_json:
        print_json({"store": url, **asdict(row), "counting": counting})
        return
    click.echo(f"plan {row.id} is {row.state}")
    setup = f"target {row.target} on device {row.device}, workload {row.workload!r}, temperature {row.temperature:g}"
    click.echo(f"{'no plan' if counting is None else f'plan {counting}'} counts for {setup}")


def _counting(store: Store, row: PlanRow) -> int | None:
    from ..errors import NoPlanError

    try:
        return store.find_plan(
            device=row.device, target=row.target, workload=row.workload, temperature=row.temperature
        ).id
    except NoPlanError:
        return None


def _somebody(store: str | None) -> str:
    """Return who decides: this user; at a service whoever the token is for, which it knows itself."""
    from ..db.remote_url import is_service
    from ..db.url import named_place

    if is_service(named_place(store)):
        return ""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"user {os.getuid()}"
