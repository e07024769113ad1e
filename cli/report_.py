"""`spectune report`: what a store holds, as one page for people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import options, plan_name
from .command import Args, command
from .existing import NOTHING, opened_there
from .report import tell


@dataclass(frozen=True, kw_only=True)
class ReportArgs(Args):
    """What was typed."""

    plan: str | None = plan_name.words.but(metavar="[PLAN]")
    output: Path = options.output.but(required=True, help="The .html file.")
    plan_option: str | None = plan_name.same_option.but(help="Only this plan; the same as PLAN.", hidden=False)
    store: str | None = options.store


@command(ReportArgs, name="report")
def report(args: ReportArgs) -> None:
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

    require_writable(args.output)
    name = plan_name.one_of(args.plan, args.plan_option)
    with opened_there(args.store, NOTHING) as opened:
        text = whole_report(opened, None if name is None else plan_name.number_of(name, opened))
    write_whole(args.output, text)
    tell(args.settings, f"written to {args.output}")
