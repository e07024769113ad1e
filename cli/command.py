"""A command whose parameters are the fields of one record, which it is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar

import click

from .report import Settings


@dataclass(frozen=True, kw_only=True)
class Args:
    """What was typed to a command: fields in the order of the help, each with its parameter as default."""

    settings: Settings


Typed = TypeVar("Typed", bound=Args)


def command(
    args: type[Typed], *, name: str | None = None, group: click.Group | None = None, **attributes: Any
) -> Callable[[Callable[[Typed], None]], click.Command]:
    """Return a decorator that makes a command, of a group if there is one, of a function of what was typed.

    `attributes` are those of `Command`.
    """
    own = [each for each in fields(args) if each.name != "settings"]
    params = [one for each in own for one in each.default.made(each.name)]  # type: ignore[union-attr]

    def made(function: Callable[[Typed], None]) -> click.Command:
        @wraps(function)
        def run(**typed: Any) -> None:
            function(args(settings=click.get_current_context().obj or Settings(), **typed))

        make = click.command if group is None else group.command
        return make(name, cls=Command, params=params, **attributes)(run)

    return made


def fields_of(request: type, args: Args) -> dict[str, Any]:
    """Return what was typed for the fields of a request, by their names."""
    typed = vars(args)
    return {each.name: typed[each.name] for each in fields(request) if each.name in typed}


class Command(click.Command):
    """A command with basic options and more options, and an answer for whoever types a word too many."""

    # Any: as click types what it passes on
    def __init__(self, *args: Any, basic: str = "", stray: str = "", **attributes: Any) -> None:
        """Take options shown first (`basic`, their longest names; all where empty) and a text on `stray` words."""
        if stray:
            attributes["context_settings"] = {"allow_extra_args": True, **attributes.get("context_settings", {})}
        super().__init__(*args, **attributes)
        self.basic, self.stray = tuple(basic.split()), stray

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what was typed; words beyond it are answered, for the parser keeps them where there is an answer."""
        rest = super().parse_args(ctx, args)
        if self.stray and rest and not ctx.resilient_parsing:
            ctx.fail(f"got an unexpected argument {rest[0]!r}; {self.stray}")
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the basic options, in their own order, and then all others."""
        if not self.basic:
            super().format_options(ctx, formatter)
            return
        first: dict[str, tuple[str, str]] = {}
        others = []
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is None or isinstance(option, click.Argument):
                continue
            name = next((each for each in self.basic if f"--{each}" in option.opts), None)
            if name is None:
                others.append(record)
            else:
                first[name] = record
        with formatter.section("Options"):
            formatter.write_dl([first[name] for name in self.basic])
        with formatter.section("More options"):
            formatter.write_dl(others)
