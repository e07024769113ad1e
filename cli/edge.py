"""`spectune edge`: devices that draft for a target on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options
from .command import Command
from .draft_models import own_name
from .edge_run import run
from .edge_serve import serve
from .existing import not_profiled, opened_there
from .report import Table, facts_of, print_json, print_table

if TYPE_CHECKING:
    from ..planner.edge.search import EdgePlan
    from ..planner.edge.setting import EdgeDevice


@click.group(name="edge")
def edge() -> None:
    """Draft on devices for a target on a server.

    A device has a drafter, the server the target; what is drafted travels, and the text is the target's own (SLED).

    \b
        spectune edge plan --target path/to/target --drafter small --rtt-ms 20 --devices 1,4,8
        spectune edge serve --target path/to/target
        spectune edge run --server host:8322 --drafter path/to/small --prompt "def main():"
    """


edge.add_command(serve)
edge.add_command(run)


@edge.command(
    cls=Command,
    basic=("target", "drafter", "devices", "draft-ms", "rtt-ms", "context", "workload", "device", "dtype", "json"),
    stray="name the model with --target MODEL",
)
@options.target
@click.option(
    "--drafter",
    "--draft-model",
    "name",
    required=True,
    metavar="NAME",
    callback=lambda _ctx, _param, text: own_name(text) if "/" in text else text,
    help="The devices' drafter, by its name in the profile or by its folder.",
)
@click.option("--draft-ms", type=click.FloatRange(0.0, min_open=True), help="A drafted token takes; else as profiled.")
@click.option("--rtt-ms", default=20.0, show_default=True, type=click.FloatRange(0.0), help="To the server and back.")
@click.option(
    "--devices", default="1,4,8", show_default=True, callback=options.counts, metavar="N,N,...", help="At once."
)
@click.option("--context", default=0, metavar="N", type=click.IntRange(0), help="Tokens of a text; else as recorded.")
@options.device
@options.dtype
@options.workload
@options.temperature
@options.store
@options.as_json
def plan(
    target: str,
    name: str,
    draft_ms: float | None,
    rtt_ms: float,
    devices: tuple[int, ...],
    store: str | None,
    as_json: bool,
    **profiled: Any,  # the other fields of an EdgeRequest
) -> None:
    """Say what drafting at the edge brings.

    Plans from the newest profile of the target on this machine, the server. It says how devices should draft, and
    how many drafts to gather before they are verified. It compares each device's speed with what the server alone
    would give it.

    \b
        spectune edge plan --target path/to/target --drafter small --rtt-ms 20 --devices 1,4,8
        spectune edge plan --target path/to/target --drafter small --draft-ms 12 --rtt-ms 60 --json
    """
    from ..planner.edge.setting import EdgeDevice
    from ..profiler.hub import resolve_model
    from ..tuning.edge import EdgeRequest, edge_planner

    with opened_there(store, not_profiled(target)) as opened:
        planner = edge_planner(EdgeRequest(target=resolve_model(target), **profiled), opened)
    drafter = planner.named(name)
    device = planner.here(drafter, rtt_ms) if draft_ms is None else EdgeDevice(draft_ms=draft_ms, rtt_ms=rtt_ms)
    found = {count: planner.plan(drafter, device, count) for count in devices}
    if as_json:
        rows = [
            {"devices": count, **facts_of(each), "drafts_at_the_edge": each.drafts_at_the_edge}
            for count, each in found.items()
        ]
        print_json({"draft_ms": device.draft_ms, "rtt_ms": device.rtt_ms, "plans": rows})
    else:
        print_table(_table(name, device, found))


def _table(name: str, device: EdgeDevice, plans: dict[int, EdgePlan]) -> Table:
    return Table(
        title=f"{name} on devices: {device.draft_ms:.3g} ms a token, {device.rtt_ms:.3g} ms to the server and back",
        columns=("devices", "draft", "gather", "tokens/s each", "server alone", "usual", "x server time", "answer ms"),
        rows=[
            (
                count,
                each.best.draftings[0].label,
                each.best.rule.label,
                round(each.best.forecast.slowest_tokens_per_s, 1),
                round(each.server_tokens_per_s, 1),
                round(each.usual.forecast.slowest_tokens_per_s, 1),
                round(each.saves, 2),
                round(each.best.forecast.answer_ms, 1),
            )
            for count, each in plans.items()
        ],
    )
