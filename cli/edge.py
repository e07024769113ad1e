"""`spectune edge`: devices that draft for a target on a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from . import options
from .command import Args, command, fields_of
from .draft_models import own_name
from .edge_run import run
from .edge_serve import serve
from .existing import not_profiled, opened_there
from .option import option, real, whole
from .report import Table, facts_of, print_facts

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


@dataclass(frozen=True, kw_only=True)
class EdgePlanArgs(Args):
    """What was typed; the fields of an EdgeRequest have their names there."""

    target: str = options.target
    name: str = option(
        "The devices' drafter, by its name in the profile or by its folder.",
        *("--drafter", "--draft-model"),
        required=True,
        metavar="NAME",
        callback=lambda _ctx, _param, text: own_name(text) if "/" in text else text,
    )
    draft_ms: float | None = real("A drafted token takes; else as profiled.", is_open="least")
    rtt_ms: float = real("To the server and back.", default=20.0)
    devices: tuple[int, ...] = option("At once.", default="1,4,8", metavar="N,N,...", callback=options.counts)
    context: int = whole("Tokens of a text; else as recorded.", least=0, absent=0, metavar="N")
    device: str = options.device
    dtype: str = options.dtype
    workload: str = options.workload
    temperature: float = options.temperature
    store: str | None = options.store
    as_json: bool = options.as_json


@command(
    EdgePlanArgs,
    group=edge,
    basic="target drafter devices draft-ms rtt-ms context workload device dtype json",
    stray="name the model with --target MODEL",
)
def plan(args: EdgePlanArgs) -> None:
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

    with opened_there(args.store, not_profiled(args.target)) as opened:
        request = EdgeRequest(**(fields_of(EdgeRequest, args) | {"target": resolve_model(args.target)}))
        planner = edge_planner(request, opened)
    drafter = planner.named(args.name)
    device = (
        planner.here(drafter, args.rtt_ms)
        if args.draft_ms is None
        else EdgeDevice(draft_ms=args.draft_ms, rtt_ms=args.rtt_ms)
    )
    found = {count: planner.plan(drafter, device, count) for count in args.devices}
    rows = [
        {"devices": count, **facts_of(each), "drafts_at_the_edge": each.drafts_at_the_edge}
        for count, each in found.items()
    ]
    facts = {"draft_ms": device.draft_ms, "rtt_ms": device.rtt_ms, "plans": rows}
    print_facts(facts, [_table(args.name, device, found)], as_json=args.as_json)


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
