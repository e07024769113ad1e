"""A command that shows its basic options first, and answers words that it does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


class Command(click.Command):
    """A command with basic options and more options, and an answer for whoever types a word too many."""

    # Any: as click types what it passes on
    def __init__(self, *args: Any, basic: Sequence[str] = (), stray: str = "", **attributes: Any) -> None:
        """Take options shown first (`basic`, by longest names; all where empty) and a text on `stray` words."""
        if stray:
            attributes["context_settings"] = {"allow_extra_args": True, **attributes.get("context_settings", {})}
        super().__init__(*args, **attributes)
        self.basic, self.stray = tuple(basic), stray

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
