"""`spectune report`: what a store holds, as one page for people."""

from __future__ import annotations

from pathlib import Path

import click

from . import options, plan_name
from .existing import NOTHING, opened_there
from .report import Settings, tell


@click.command(name="report")
@click.argument("plan", nargs=-1, metavar="[PLAN]", callback=plan_name.plan_words)
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The .html file.")
@click.option(
    "--plan", "option", metavar="PLAN", callback=plan_name.plan_name, help="Only this plan; the same as PLAN."
)
@options.store
@click.pass_obj
def report(settings: Settings, /, plan: str | None, output: Path, option: str | None, store: str | None) -> None:
    """Write everything in the store as one page.

    The page shows devices, latency surfaces, acceptance, plans, validations and drift. It also shows what changed
    from one plan to the next. It is one file and needs no network. PLAN is a number of `spectune list` or a file of
    `spectune plan -o`; the page then holds this plan and its measurements alone.

    \b
        spectune report -o report.html
        spectune report plan 3 -o plan.html
    """
    from ..report.file import require_writable, write_whole
    from ..report.site.whole import whole_report

    require_writable(output)
    name = plan_name.one_of(plan, option)
    with opened_there(store, NOTHING) as opened:
        text = whole_report(opened, None if name is None else plan_name.number_of(name, opened))
    write_whole(output, text)
    tell(settings, f"written to {output}")
