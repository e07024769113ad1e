"""A plan as people name it in every command: its number in the store, or the file that `-o` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import RequestError, StoreError
from .option import argument, option

if TYPE_CHECKING:
    from ..db.store import Store

KIND = "plan"  # may be written before a plan's name
METAVAR = "PLAN"
FORMS = "a number of spectune list, or a file of spectune plan -o"


def plan_name(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """Return a plan's number or file; anything else is a usage error."""
    if text is None or is_number(text) or Path(text).is_file():
        return text
    why = "plans are numbered from 1" if text.isdecimal() else "there is no such file"
    raise click.BadParameter(f"{text!r} names no plan, {why}; give {FORMS}")


def is_number(text: str) -> bool:
    """Say whether a text is a plan's number."""
    return text.isascii() and text.isdecimal() and int(text) > 0


def plan_words(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> str | None:
    """Return the plan that `3`, `plan 3`, `plan.json` or `plan plan.json` names; None without words."""
    names = list(words[1:] if words[:1] == (KIND,) else words)
    if len(names) > 1:
        raise click.UsageError(f"got {' '.join(words)!r}, which is more than one plan; give {FORMS}")
    return plan_name(ctx, param, names[0] if names else None)


words = argument(nargs=-1, metavar=METAVAR, callback=plan_words)
same_option = option(
    f"The same as {METAVAR}.", "--plan", "plan_option", metavar=METAVAR, callback=plan_name, hidden=True
)


def one_of(plan: str | None, plan_option: str | None) -> str | None:
    """Return the plan that the argument or the option names; both are a usage error."""
    if plan is not None and plan_option is not None:
        raise click.UsageError(f"The plan is named twice, {plan!r} and --plan {plan_option}; leave one of them out.")
    return plan or plan_option


def document_of(path: Path) -> str:
    """Return the plan in a file; RequestError where it cannot be read, PlanError where it holds no plan."""
    from ..planner.plans.document import plan_from_json

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"cannot read the plan {path} ({reason}); write one with: spectune plan -o FILE") from error
    plan_from_json(text)
    return text


def number_in(document: str, store: Store) -> int | None:
    """Return the number of a plan's document in a store, the newest of equal ones; None where it is not there."""
    from ..db.sources import content_hash

    own = content_hash(document)
    return max((row.id for row in store.plans() if row.content_hash == own), default=None)


def number_of(plan: str, store: Store) -> int:
    """Return the number of a plan that a person names; StoreError where the store lacks the plan of that file."""
    if is_number(plan):
        return int(plan)
    number = number_in(document_of(Path(plan)), store)
    if number is None:
        raise StoreError(f"{store.url} does not hold the plan of {plan}; spectune list shows the plans that it holds")
    return number
