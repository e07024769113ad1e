"""`spectune report`: what a store holds, as one page for people."""

from __future__ import annotations

from pathlib import Path

import click

from . import options
from .existing import NOTHING, require_there
from .report import tell
from .settings import Settings


@click.command(name="report")
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The .html file.")
@click.option("--plan", "number", type=click.IntRange(1), metavar="N", help="Only this plan and what it rests on.")
@options.store
@click.pass_obj
def report(settings: Settings, /, output: Path, number: int | None, store: str | None) -> None:
    """Write what the store knows as one page.

    Devices, surfaces, acceptance, plans with what became of their promises, drift, and what differs between a
    plan and the one before it: one file that needs no network, for a screen, a phone or paper.

    \b
        spectune report -o report.html
        spectune report -o plan.html --plan 3
    """
    from ..db.store import open_store
    from ..report.file import require_writable, write_whole
    from ..report.site.whole import whole_report

    require_writable(output)
    require_there(store, NOTHING)
    with open_store(store) as opened:
        text = whole_report(opened, number)
    write_whole(output, text)
    tell(settings, f"written to {output}")
