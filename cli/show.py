"""`spectune show`: one plan, surface or trace of the store."""

from __future__ import annotations

from pathlib import Path

import click

from . import options, output
from .report import print_json, print_table, tell
from .settings import Settings


@click.command()
@click.argument("kind", default="plan", type=click.Choice(["plan", "surface", "trace"]))
@click.option("--id", "number", type=click.IntRange(1), metavar="N", help="Which, as in the list; else the newest.")
@options.store
@options.as_json
@output.option
@click.pass_obj
def show(
    settings: Settings, /, kind: str, number: int | None, store: str | None, as_json: bool, output: Path | None
) -> None:
    """Show a plan and how it was checked.

    KIND is plan (with its cells and every time it was validated), surface or trace.

    \b
        spectune show
        spectune show surface --id 2
        spectune show plan --id 3 -o plan.json
    """
    from ..db.store import open_store
    from .output import require_writable, write_whole
    from .stored import KINDS

    require_writable(output)
    with open_store(store) as opened:
        found = KINDS[kind](opened, number)
    if output is not None:
        write_whole(output, found.document)
    if as_json:
        print_json(found.facts)
    else:
        for table in found.tables:
            print_table(table)
    if output is not None:
        tell(settings, f"written to {output}")
