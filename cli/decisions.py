"""`spectune promote`, `retire` and `restore`: which plan of a setup counts."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from . import options, plan_name
from .command import Args, command
from .existing import NOTHING, opened_there
from .option import option
from .report import print_facts, tell

if TYPE_CHECKING:
    from ..db.rows import PlanRow
    from ..db.store import Store

Decide = Callable[["Store", int, str], None]  # in a store, of a plan, by somebody


@dataclass(frozen=True, kw_only=True)
class DecisionArgs(Args):
    """What was typed."""

    plan: str | None = plan_name.words
    plan_option: str | None = plan_name.same_option
    reason: str = option("Why, for those who read it later.", required=True, metavar="TEXT")
    store: str | None = options.store
    as_json: bool = options.as_json


@command(DecisionArgs)
def promote(args: DecisionArgs) -> None:
    """Use this plan, whatever is planned later.

    Decoders use one plan of each device, target, workload and temperature: the one promoted last, else the newest
    that is not retired. `spectune list` shows which. PLAN is its number there, or a file of `spectune plan -o`.

    \b
        spectune promote 3 --reason "validated on two hosts"
    """
    _decide(args, lambda opened, number, by: opened.promote_plan(number, by, args.reason))


@command(DecisionArgs)
def retire(args: DecisionArgs) -> None:
    """Use this plan no more.

    Decoders go back to the plan before it, if there is one. Nothing is deleted: you can still name a retired plan by
    its number, and restore it.

    \b
        spectune retire 3 --reason "slower than plain decoding since the new driver"
    """
    _decide(args, lambda opened, number, by: opened.retire_plan(number, by, args.reason))


@command(DecisionArgs)
def restore(args: DecisionArgs) -> None:
    """Let a retired plan be used again.

    Decoders use it if it is the newest of its setup and no plan is promoted, or once you promote it again.

    \b
        spectune restore 3 --reason "the old driver is back"
    """
    _decide(args, lambda opened, number, by: opened.restore_plan(number, by, args.reason))


def _decide(args: DecisionArgs, decide: Decide) -> None:
    name = plan_name.one_of(args.plan, args.plan_option)
    if name is None:
        raise click.UsageError(f"Missing argument 'PLAN'. Give {plan_name.FORMS}.")
    with opened_there(args.store, NOTHING) as opened:
        number = plan_name.number_of(name, opened)
        decide(opened, number, _somebody(args.store))
        row, url = opened.plan_row(number), opened.url
        counting, note = _counting(opened, row), opened.note
    if note:
        tell(args.settings, note)
    setup = f"target {row.target} on device {row.device}, workload {row.workload!r}, temperature {row.temperature:g}"
    plan = "no plan" if counting is None else f"plan {counting}"
    facts = {"store": url, **asdict(row), "counting": counting}
    print_facts(facts, [f"plan {row.id} is {row.state}", f"{plan} counts for {setup}"], as_json=args.as_json)


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
