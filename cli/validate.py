"""`spectune validate`: does the plan keep its promise?"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import PlanError
from . import engine as engines
from . import options, raced, servers
from .command import Command
from .existing import NOTHING, as_it_is, not_profiled, opened_there
from .model import model_places, tell_dequantised
from .prompts import named_prompts, tell_cut
from .report import Settings, TimeLeft, print_json, print_table, progress, tell
from .rescue import rescued

STRAY = "name the model with --target MODEL and a plan with --plan 3"

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..planner.engines.served_choice import LatencyBounds
    from ..planner.plans.plan import Plan
    from ..planner.plans.validation import Validation
    from ..tuning.engines.tune import Tuned


@click.command(
    cls=Command,
    basic=(
        "target",
        "plan",
        "prompts",
        "draft-model",
        "drafter",
        "batch",
        "workload",
        "rounds",
        "fail-above",
        "device",
    ),
)
@servers.command
@engines.option
@servers.url
@click.option("--target", "--model", "target", metavar="MODEL", help=f"The target: {options.MODEL_FORMS}.")
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Race what tune --bundle chose against the server that COMMAND starts.",
)
@options.prompts
@options.sample
@click.option("--plan", metavar="PLAN", help="A number of the list or a file; else the plan in use on this device.")
@options.drafters
@options.device
@options.planned_dtype
@click.option("--workload", metavar="NAME", help="Whose plan; else that of the workload profiled last.")
@options.temperature
@click.option(
    "--batch",
    "batches",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Batch sizes; else all of the plan's.",
)
@options.slo
@options.max_new_tokens
@options.max_prompt_tokens
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Interleaved repetitions.")
@servers.start_timeout
@servers.stall_timeout
@options.seed
@options.allow_lossy
@options.store
@click.option("--fail-above", type=click.FloatRange(0.0), metavar="PERCENT", help="Exit 1 if a prediction is off more.")
@options.as_json
@click.pass_obj
def validate(
    settings: Settings,
    /,
    command: tuple[str, ...],
    engine: str | None,
    url: str | None,
    target: str | None,
    bundle: Path | None,
    prompts: Path | None,
    drafters: dict[str, str],
    sample: int | None,
    bounds: LatencyBounds | None,
    store: str | None,
    fail_above: float | None,
    as_json: bool,
    **measured: Any,  # the other fields of a ValidateRequest, which checks them
) -> None:
    """Measure the plan against plain decoding.

    Both decode the same prompts in turns, so that disturbances of the device meet both alike. Predicted and
    measured speed are saved beside the plan, with the reason for the difference: texts, machine or rounds. The plan
    is that of the workload profiled last unless you name one.

    \b
        spectune validate --target path/to/target --fail-above 15
        spectune validate --target path/to/target --plan 3 --drafter small=path/to/small
        spectune validate --engine llama.cpp --target target.gguf
        spectune validate --engine vllm --prompts new.jsonl -- vllm serve MODEL
        spectune validate --bundle out.json --prompts new.jsonl -- llama-server -m target.gguf -md draft.gguf
    """
    limits = {name: measured.pop(name) for name in servers.OF_TIMEOUTS}
    if bundle is not None or servers.is_server(engine, command, url, STRAY):
        from ..engines.server import ServerTimeouts

        used = named_prompts(settings, prompts, "evaluation", sample=sample, seed=measured["seed"])
        found = _server_plan(engine, command, url, bundle, bounds, store)
        if url is not None:
            raced.validate_url(settings, found, used, ServerTimeouts(**limits), as_json=as_json)
        else:
            raced.validate_server(
                settings, found, command, used, measured["rounds"], ServerTimeouts(**limits), as_json=as_json
            )
        return
    options.require_untyped(servers.OF_TIMEOUTS, servers.NO_SERVER)
    options.require_untyped(("bounds",), "chooses the plan of a server; give one with --server URL or -- COMMAND.")
    if target is None:
        raise click.MissingParameter(param_hint="'--target'", param_type="option")
    if engine is None and measured["plan"] is not None:
        options.require_untyped(("workload", "temperature"), "chooses a plan, and --plan names one.")
    used = named_prompts(settings, prompts, "evaluation", sample=sample, seed=measured["seed"])
    if engine is not None:
        asked = {**measured, "store": store, "as_json": as_json}
        told = engines.validate_command(settings, engine, target, used, asked)
        _tell_apart(settings, told.validation)
        _tell_slower(settings, told.validation, target)
        _require_kept(told.validation, fail_above)
        return
    from ..planner.reasons.verdict import warnings_of
    from ..profiler.hub import resolve_model
    from ..tuning.validate import ValidateRequest, validate_stored
    from .cells import validation_facts, validation_table

    request = ValidateRequest(target=resolve_model(target), drafters=model_places(drafters), prompts=used, **measured)

    def tell_read(plan: Plan, models: Iterable[Path], dtype: str) -> None:  # whose number format may be the plan's
        tell_dequantised(settings, models, dtype)
        for warning in warnings_of(plan):
            tell(settings, warning)

    if prompts is not None:
        tell_cut(settings, request.as_profile(request.batches or (1,)))
    is_file = request.plan is not None and not request.plan.isdecimal()  # a file's plan needs no store
    place = as_it_is(store) if is_file and store is None else store
    with opened_there(place, not_profiled(target)) as opened, progress(settings) as report:
        done = validate_stored(
            request, opened, progress=TimeLeft(report), told=tell_read, guard=partial(rescued, "validation")
        )
        url = opened.url
    if as_json:
        print_json({"plan": done.plan_id, "rows": [validation_facts(row) for row in done.rows], "store": url})
    else:
        print_table(validation_table(done))
    _tell_apart(settings, done)
    _tell_slower(settings, done, target)
    where = f"kept in {url} beside plan {done.plan_id}"
    tell(settings, "kept nowhere: the plan is a file, or another device's" if done.plan_id is None else where)
    _require_kept(done, fail_above)


def _server_plan(
    engine: str | None,
    command: Sequence[str],
    url: str | None,
    bundle: Path | None,
    bounds: LatencyBounds | None,
    store: str | None,
) -> Tuned:
    """Return the plan of a server, by a bundle or by what the store holds."""
    from ..engines.bundle import read_bundle
    from ..errors import RequestError
    from ..planner.engines.served_choice import LatencyBounds

    known = {"command", "engine", "url", "bundle", "prompts", "sample", "bounds", "rounds", "seed", "store", "as_json"}
    engines.require_only(known | set(servers.OF_TIMEOUTS), "not of a server; its plan says what is measured")
    if bundle is None:
        assert engine is not None
        with opened_there(store, NOTHING) as opened:
            return servers.stored(engine, command, url, bounds or LatencyBounds(), opened)[0]
    options.require_untyped(("bounds",), "is of a plan of the store, and --bundle holds what tune chose.")
    found = read_bundle(bundle)
    if found.chosen is None:
        raise RequestError(f"{bundle} is of a run that did not end; let spectune tune --bundle {bundle} end it")
    return replace(servers.planned(found, command, LatencyBounds())[0], start=found.chosen)


def _tell_apart(settings: Settings, done: Validation) -> None:
    """Say why results lie outside their interval."""
    from .cells import why_apart

    for row in done.rows:
        low, high = row.interval
        if not low <= row.measured_tokens_per_s <= high:
            place = f"batch {row.batch}, context {row.context}"
            tell(settings, f"{place}: outside its 90 % interval; {why_apart(row)}")


def _tell_slower(settings: Settings, done: Validation, target: str) -> None:
    """Warn where plain decoding was faster than what was planned, and say what to do."""
    from .cells import slower_than_plain

    if slower := slower_than_plain(done):
        retire = "" if done.plan_id is None else f", or let it count no more: spectune retire {done.plan_id}"
        tell(settings, f"WARNING: PLAIN DECODING IS FASTER THAN THE PLAN at {slower}")
        tell(settings, f"  decode plainly there: spectune run --target {target} --plan none{retire}")
        tell(settings, "  or profile on prompts of this kind, and plan from that: spectune profile --prompts FILE")


def _require_kept(done: Validation, percent: float | None) -> None:
    worst = max(done.rows, key=lambda row: row.error)
    if percent is not None and 100.0 * worst.error > percent:
        raise PlanError(
            f"the prediction for batch {worst.batch}, context {worst.context} is off by {worst.error:.1%}, more than "
            f"{percent:g} %; profile and plan again"
        )
