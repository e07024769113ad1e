"""`spectune validate`: does the plan keep its promise?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import PlanError
from . import engine as engines
from . import options, raced, servers
from .cells import slower_than_plain, validation_facts, validation_table, why_apart
from .command import Args, command, fields_of
from .existing import NOTHING, as_it_is, not_profiled, opened_there
from .model import model_places, tell_dequantised
from .option import option, path_option, real, whole
from .prompts import named_prompts, tell_cut
from .report import Settings, TimeLeft, print_facts, progress, tell
from .rescue import rescued

STRAY = "name the model with --target MODEL and a plan with --plan 3"

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..planner.engines.served_choice import LatencyBounds
    from ..planner.plans.plan import Plan
    from ..planner.plans.validation import Validation
    from ..profiler.prompts import Prompt
    from ..tuning.engines.tune import Tuned


@dataclass(frozen=True, kw_only=True)
class ValidateArgs(Args):
    """What was typed; the fields of a ValidateRequest have their names there, and it checks them."""

    command: tuple[str, ...] = options.server_command
    engine: str | None = engines.option
    url: str | None = options.url
    target: str | None = options.target.but(required=False)
    bundle: Path | None = path_option("Race what tune --bundle chose against the server that COMMAND starts.")
    prompts: Path | None = options.prompts
    sample: int | None = options.sample
    plan: str | None = option("A number of the list or a file; else the plan in use on this device.", metavar="PLAN")
    drafters: dict[str, str] = options.drafters
    device: str = options.device
    dtype: str | None = options.planned_dtype
    workload: str | None = option("Whose plan; else that of the workload profiled last.", metavar="NAME")
    temperature: float = options.temperature
    batches: tuple[int, ...] = options.batches.but(help="Batch sizes; else all of the plan's.")
    bounds: LatencyBounds | None = options.slo
    max_new_tokens: int = options.max_new_tokens
    max_prompt_tokens: int | None = options.max_prompt_tokens
    rounds: int = whole("Interleaved repetitions.", default=3)
    start_s: float = options.start_timeout
    stall_s: float = options.stall_timeout
    seed: int = options.seed
    allow_lossy: bool = options.allow_lossy
    store: str | None = options.store
    fail_above: float | None = real("Exit 1 if a prediction is off more.", metavar="PERCENT")
    as_json: bool = options.as_json


@command(ValidateArgs, basic="target plan prompts draft-model drafter batch workload rounds fail-above device")
def validate(args: ValidateArgs) -> None:
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
    if args.bundle is not None or servers.is_server(args.engine, args.command, args.url, STRAY):
        _validate_server(args, _prompts(args))
        return
    options.require_untyped(servers.OF_TIMEOUTS, servers.NO_SERVER)
    options.require_untyped(("bounds",), "chooses the plan of a server; give one with --server URL or -- COMMAND.")
    if args.target is None:
        raise click.MissingParameter(param_hint="'--target'", param_type="option")
    if args.engine is None and args.plan is not None:
        options.require_untyped(("workload", "temperature"), "chooses a plan, and --plan names one.")
    used = _prompts(args)
    if args.engine is None:
        done = _validate(args, args.target, used)
    else:
        done = engines.validate_command(args, used).validation
    _tell_apart(args.settings, done)
    _tell_slower(args.settings, done, args.target)
    _require_kept(done, args.fail_above)


def _prompts(args: ValidateArgs) -> Sequence[Prompt]:
    return named_prompts(args.settings, args.prompts, "evaluation", sample=args.sample, seed=args.seed)


def _validate(args: ValidateArgs, target: str, prompts: Sequence[Prompt]) -> Validation:
    """Measure a plan of our own decoder, print and return what came out."""
    from ..planner.reasons.verdict import warnings_of
    from ..profiler.hub import resolve_model
    from ..tuning.validate import ValidateRequest, validate_stored

    own = {"target": resolve_model(target), "drafters": model_places(args.drafters), "prompts": prompts}
    request = ValidateRequest(**(fields_of(ValidateRequest, args) | own))

    def tell_read(plan: Plan, models: Iterable[Path], dtype: str) -> None:  # whose number format may be the plan's
        tell_dequantised(args.settings, models, dtype)
        for warning in warnings_of(plan):
            tell(args.settings, warning)

    if args.prompts is not None:
        tell_cut(args.settings, request.as_profile(request.batches or (1,)))
    is_file = request.plan is not None and not request.plan.isdecimal()  # a file's plan needs no store
    place = as_it_is(args.store) if is_file and args.store is None else args.store
    with opened_there(place, not_profiled(target)) as opened, progress(args.settings) as report:
        done = validate_stored(
            request, opened, progress=TimeLeft(report), told=tell_read, guard=partial(rescued, "validation")
        )
        url = opened.url
    facts = {"plan": done.plan_id, "rows": [validation_facts(row) for row in done.rows], "store": url}
    print_facts(facts, [validation_table(done)], as_json=args.as_json)
    is_kept = done.plan_id is not None
    where = f"kept in {url} beside plan {done.plan_id}"
    tell(args.settings, where if is_kept else "kept nowhere: the plan is a file, or another device's")
    return done


def _validate_server(args: ValidateArgs, prompts: Sequence[Prompt]) -> None:
    from ..engines.server import ServerTimeouts

    found, limits = _server_plan(args), ServerTimeouts(start_s=args.start_s, stall_s=args.stall_s)
    if args.url is not None:
        raced.validate_url(args.settings, found, prompts, limits, as_json=args.as_json)
    else:
        raced.validate_server(args.settings, found, args.command, prompts, args.rounds, limits, as_json=args.as_json)


def _server_plan(args: ValidateArgs) -> Tuned:
    """Return the plan of a server, by a bundle or by what the store holds."""
    from ..engines.bundle import read_bundle
    from ..errors import RequestError
    from ..planner.engines.served_choice import LatencyBounds

    known = {"command", "engine", "url", "bundle", "prompts", "sample", "bounds", "rounds", "seed", "store", "as_json"}
    engines.require_only(known | set(servers.OF_TIMEOUTS), "not of a server; its plan says what is measured")
    if args.bundle is None:
        assert args.engine is not None, "a server has an engine"
        with opened_there(args.store, NOTHING) as opened:
            return servers.stored(args.engine, args.command, args.url, args.bounds or LatencyBounds(), opened)[0]
    options.require_untyped(("bounds",), "is of a plan of the store, and --bundle holds what tune chose.")
    found = read_bundle(args.bundle)
    if found.chosen is None:
        raise RequestError(
            f"{args.bundle} is of a run that did not end; let spectune tune --bundle {args.bundle} end it"
        )
    return replace(servers.planned(found, args.command, LatencyBounds())[0], start=found.chosen)


def _tell_apart(settings: Settings, done: Validation) -> None:
    """Say why results lie outside their interval."""
    for row in done.rows:
        low, high = row.interval
        if not low <= row.measured_tokens_per_s <= high:
            place = f"batch {row.batch}, context {row.context}"
            tell(settings, f"{place}: outside its 90 % interval; {why_apart(row)}")


def _tell_slower(settings: Settings, done: Validation, target: str) -> None:
    """Warn where plain decoding was faster than what was planned, and say what to do."""
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
