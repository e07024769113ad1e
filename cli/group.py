"""The group behind `spectune`: commands load late, errors of ours are one line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from typing import Any

import click

from ..errors import SpectuneError
from .commands import LazyCommand
from .settings import Settings

INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C: 128 + SIGINT


class LazyGroup(click.Group):
    """Imports a command's module only when that command is asked for.

    A SpectuneError becomes one line on stderr and exit code 1, Ctrl-C exit code 130; any other
    exception is a bug and keeps its traceback.
    """

    # Any: click types both the options it passes on and the result of a command so.
    def __init__(self, *args: Any, table: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command's name, in the table's order."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the named command, importing its module, or None where there is none."""
        entry = self.table.get(cmd_name)
        return entry.load() if entry else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; the table's lines are written without importing them."""
        rows = [(name, entry.help) for name, entry in self.table.items()]
        rows += [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here a closed pipe still meets click's handler, at exit it would print a warning
        except SpectuneError as error:
            if isinstance(ctx.obj, Settings) and ctx.obj.verbose:
                traceback.print_exception(error)
            raise click.ClickException(" ".join(str(error).split())) from error
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        return result
