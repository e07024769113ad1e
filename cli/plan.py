"""`spectune plan`: from measurements to the fastest way of decoding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .report import print_table, progress, tell
from .settings import Settings

if TYPE_CHECKING:
    from ..planner.plan import Plan


@click.command()
@click.option("--target", required=True, metavar="PATH|NAME", help="Folder, or a name or key that the store knows.")
@options.device
@options.dtype
@options.workload
@options.temperature
@click.option(
    "--batch",
    "batches",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Batch sizes; else all measured ones.",
)
@click.option(
    "--context",
    "contexts",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Contexts; else all measured ones.",
)
@options.seed
@options.store
@click.option("--explain", is_flag=True, help="Say why, cell by cell; with --json on stderr.")
@options.as_json
@output.option
@click.pass_obj
def plan(
    settings: Settings,
    /,
    target: str,
    device: str,
    store: str | None,
    explain: bool,
    as_json: bool,
    output: Path | None,
    **wanted: Any,  # the other fields of a PlanRequest, which checks them
) -> None:
    """Choose how to decode fastest, and say why.

    Replays chains, prompt lookup and trees of every drafter on what `spectune profile` recorded, and
    keeps the best per batch and context. Plain decoding is always a candidate.

    \b
        spectune plan --target path/to/target --explain
        spectune plan --target path/to/target --batch 1,8 -o plan.json
    """
    from ..db.store import open_store
    from ..planner.plan import plan_to_json
    from ..profiler.device import detect
    from ..tuning.plan import PlanRequest, make_plan
    from .cells import plan_table
    from .model import named_model
    from .output import require_writable, write_whole

    require_writable(output)
    with open_store(store) as opened, progress(settings) as report:
        request = PlanRequest(target=named_model(target, opened), device=detect(device), **wanted)
        report("solving the plan", 0.0)
        made = make_plan(request, opened)
        url = opened.url
    if output is not None:
        write_whole(output, plan_to_json(made))
    if as_json:
        click.echo(plan_to_json(made))
    elif not explain:
        print_table(plan_table(made))
    if explain:
        _print_explanation(made, is_aside=as_json)
    tell(settings, f"kept in {url}" + (f", written to {output}" if output else ""))


def _print_explanation(plan: Plan, *, is_aside: bool) -> None:
    from ..planner.explain import explain_plan

    click.echo("\n".join(explain_plan(plan)), err=is_aside)
