"""`spectune show`: one plan, surface or trace of the store."""

from __future__ import annotations

from pathlib import Path

import click

from . import options, output
from .existing import NOTHING, require_there
from .report import print_json, print_table, tell
from .settings import Settings


@click.command()
@click.argument("kind", default="plan", type=click.Choice(["plan", "surface", "trace"]))
@click.option("--id", "number", type=click.IntRange(1), metavar="N", help="Which, as in the list.")
@options.store
@options.as_json
@output.option
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw it: .png, or .html to look into.")
@click.pass_obj
def show(
    settings: Settings,
    /,
    kind: str,
    number: int | None,
    store: str | None,
    as_json: bool,
    output: Path | None,
    plot: Path | None,
) -> None:
    """Show a plan and how it was checked.

    Without --id it is the plan that counts for what was planned last, the target's surface that was timed last, or the
    newest trace.

    KIND is plan (with its cells, what published defaults would keep of its speed, and every time it was
    validated), surface or trace. --plot draws a plan, its speed-up over batch beside its rivals and the
    trees it drafts; a surface, latency against tokens with its held-out errors; or a trace, acceptance
    by depth and rank.

    \b
        spectune show
        spectune show surface --id 2 --plot surface.html
        spectune show plan --id 3 -o plan.json --plot plan.html
    """
    from ..db.store import open_store
    from ..report.picture import require_picture, write_picture
    from .output import require_writable, write_whole
    from .stored import KINDS

    require_writable(output)
    if plot is not None:
        require_picture(plot)
    require_there(store, NOTHING)
    with open_store(store, writes=False) as opened:
        found, note = KINDS[kind](opened, number), opened.note
    if note:
        tell(settings, note)
    if output is not None:
        write_whole(output, found.document)
    if plot is not None:
        write_picture(plot, found.draw())
    if as_json:
        print_json(found.facts)
    else:
        for table in found.tables:
            print_table(table)
    for path in (output, plot):
        if path is not None:
            tell(settings, f"written to {path}")
