"""The group behind `spectune`: commands load late, errors of ours are one line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Any

import click

from ..errors import NotInstalledError, SpectuneError
from . import other_names
from .commands import LazyCommand
from .settings import Settings

INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C: 128 + SIGINT


class LazyGroup(click.Group):
    """Imports a command's module only when that command is used; `groups` are commands by name, by their title.

    A SpectuneError becomes one line on stderr and exit code 1, as does a missing package of the extra `run`; Ctrl-C
    becomes exit code 130. Any other exception is a bug and keeps its traceback.
    """

    # Any: click types both the options it passes on and the result of a command so.
    def __init__(self, *args: Any, groups: Mapping[str, Mapping[str, LazyCommand]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.groups = groups
        self.table = {name: entry for group in groups.values() for name, entry in group.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, in the table's order."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the named command, importing its module, or None where there is none."""
        entry = self.table.get(cmd_name)
        return entry.load() if entry else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed; of an unknown one say which does the same here."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(other_names.answer(name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands group by group; the table's lines are written without importing them."""
        groups = {title: [(name, entry.help) for name, entry in group.items()] for title, group in self.groups.items()}
        if self.commands:
            groups["Other"] = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        width = max((len(name) for rows in groups.values() for name, _ in rows), default=0)
        formatter.write("\nCommands:\n")
        for title, rows in groups.items():
            formatter.write(f" {title}:\n")
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), line) for name, line in rows])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here a closed pipe still meets click's handler, at exit it would print a warning
        except (SpectuneError, ModuleNotFoundError) as error:
            known = error if isinstance(error, SpectuneError) else NotInstalledError.of(error)
            if known is None:
                raise
            if isinstance(ctx.obj, Settings) and ctx.obj.verbose:
                traceback.print_exception(error)
            raise click.ClickException(" ".join(str(known).split())) from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        return result
