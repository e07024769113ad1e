"""`spectune show`: one plan, surface or trace of the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options, plan_name
from .command import Args, command
from .existing import NOTHING, opened_there
from .option import argument, option, whole
from .report import print_facts, tell

if TYPE_CHECKING:
    from .stored import Stored

OTHER_KINDS = ("surface", "trace")  # are named by their numbers alone


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReference:
    """What is to be shown; without a name the plan in use, or the newest record."""

    kind: str
    name: str | None = None


def wanted(ctx: click.Context, param: click.Parameter, words: Sequence[str]) -> RecordReference:
    """Return what `plan 3`, `3`, `plan.json` or `surface 2` names."""
    if words and words[0] in OTHER_KINDS:
        if len(words) > 2 or not all(map(plan_name.is_number, words[1:])):
            raise click.UsageError(f"a {words[0]} is named by its number; write for example {words[0]} 2")
        return RecordReference(kind=words[0], name=words[1] if words[1:] else None)
    if words and words[0] != plan_name.KIND and not plan_name.is_number(words[0]) and not Path(words[0]).is_file():
        raise click.UsageError(f"{words[0]!r} is no plan, surface, trace, number or file; write for example plan 3")
    return RecordReference(kind=plan_name.KIND, name=plan_name.plan_words(ctx, param, words))


@dataclass(frozen=True, kw_only=True)
class ShowArgs(Args):
    """What was typed."""

    wanted: RecordReference = argument(nargs=-1, metavar="[plan|surface|trace] [PLAN]", callback=wanted)
    number: int | None = whole("Which, as in the list.", "--id", metavar="N", hidden=True)
    plan: str | None = option("The same as PLAN.", metavar="PLAN", callback=plan_name.plan_name, hidden=True)
    store: str | None = options.store
    as_json: bool = options.as_json
    output: Path | None = options.output
    plot: Path | None = options.plot


@command(ShowArgs)
def show(args: ShowArgs) -> None:
    """Show a plan and how it was checked.

    PLAN is a number of `spectune list` or a file of `spectune plan -o`. Without it you see the plan in use for
    what was planned last. The first lines are the verdict: how to decode, the speed-up over plain decoding with its
    interval, and the batch above which speculation stops paying. Then come the cells, published defaults and
    validations. A surface holds the timed forwards of a model, a trace the acceptance of a drafter.

    \b
        spectune show
        spectune show plan 3 -o plan.json --plot plan.html
        spectune show plan plan.json
        spectune show surface 2 --plot surface.html
    """
    from ..report.file import require_writable, write_whole
    from ..report.picture import require_picture, write_picture

    require_writable(args.output)
    if args.plot is not None:
        require_picture(args.plot)
    kind, number = args.wanted.kind, None if args.number is None else str(args.number)
    given = [each for each in (args.wanted.name, number, args.plan) if each is not None]
    if len(given) > 1:
        raise click.UsageError(f"The {kind} is named twice, {' and '.join(given)}; leave one of them out.")
    found, note = _found(kind, given[0] if given else None, args.store)
    if note:
        tell(args.settings, note)
    if args.output is not None:
        write_whole(args.output, found.document)
    if args.plot is not None:
        write_picture(args.plot, found.draw())
    print_facts(found.facts, (*found.verdict, *found.tables), as_json=args.as_json)
    for path in (args.output, args.plot):
        if path is not None:
            tell(args.settings, f"written to {path}")


def _found(kind: str, name: str | None, store: str | None) -> tuple[Stored, str]:
    """Return a record, and notes on the store; a plan of a file needs no store, unless one is named."""
    from .existing import as_it_is
    from .stored import KINDS
    from .stored_plan import named_plan, plan_in_file

    is_file = kind == plan_name.KIND and name is not None and not plan_name.is_number(name)
    if name is not None and is_file and store is None and as_it_is(store) != store:
        return plan_in_file(name), ""
    with opened_there(store, NOTHING, writes=False) as opened:
        if kind == plan_name.KIND:
            return named_plan(opened, name), opened.note
        return KINDS[kind](opened, None if name is None else int(name)), opened.note
