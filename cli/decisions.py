"""`spectune promote`, `retire` and `restore`: which plan of a setup counts."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from . import options, plan_name
from .existing import NOTHING, opened_there
from .report import Settings, print_json, tell

if TYPE_CHECKING:
    from ..db.rows import PlanRow
    from ..db.store import Store

reason = click.option("--reason", required=True, metavar="TEXT", help="Why, for those who read it later.")

Decide = Callable[["Store", int, str], None]  # in a store, of a plan, by somebody


def _decision(run: Callable[..., None]) -> click.Command:
    for given in (click.pass_obj, options.as_json, options.store, reason, plan_name.argument):
        run = given(run)
    return click.command()(run)


@_decision
def promote(
    settings: Settings, plan: str | None, plan_option: str | None, reason: str, store: str | None, as_json: bool
) -> None:
    """Use this plan, whatever is planned later.

    Decoders use one plan of each device, target, workload and temperature: the one promoted last, else the newest
    that is not retired. `spectune list` shows which. PLAN is its number there, or a file of `spectune plan -o`.

    \b
        spectune promote 3 --reason "validated on two hosts"
    """
    name = _named(plan, plan_option)
    _decide(lambda opened, number, by: opened.promote_plan(number, by, reason), name, settings, store, as_json)


@_decision
def retire(
    settings: Settings, plan: str | None, plan_option: str | None, reason: str, store: str | None, as_json: bool
) -> None:
    """Use this plan no more.

    Decoders go back to the plan before it, if there is one. Nothing is deleted: you can still name a retired plan by
    its number, and restore it.

    \b
        spectune retire 3 --reason "slower than plain decoding since the new driver"
    """
    name = _named(plan, plan_option)
    _decide(lambda opened, number, by: opened.retire_plan(number, by, reason), name, settings, store, as_json)


@_decision
def restore(
    settings: Settings, plan: str | None, plan_option: str | None, reason: str, store: str | None, as_json: bool
) -> None:
    """Let a retired plan be used again.

    Decoders use it if it is the newest of its setup and no plan is promoted, or once you promote it again.

    \b
        spectune restore 3 --reason "the old driver is back"
    """
    name = _named(plan, plan_option)
    _decide(lambda opened, number, by: opened.restore_plan(number, by, reason), name, settings, store, as_json)


def _named(plan: str | None, plan_option: str | None) -> str:
    name = plan_name.one_of(plan, plan_option)
    if name is None:
        raise click.UsageError(f"Missing argument 'PLAN'. Give {plan_name.FORMS}.")
    return name


def _decide(decide: Decide, name: str, settings: Settings, store: str | None, as_json: bool) -> None:
    with opened_there(store, NOTHING) as opened:
        number = plan_name.number_of(name, opened)
        decide(opened, number, _somebody(store))
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
    """Return who decides: this user; nobody at a service, which knows whose the token is."""
    from ..db.url import is_service, named_place

    if is_service(named_place(store)):
        return ""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"user {os.getuid()}"
