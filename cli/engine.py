"""`--engine` of profile, plan and validate: the same three steps on an engine that runs here."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..engines.table import RUNNING, SERVERS
from .cells import validation_facts, validation_table
from .command import fields_of
from .existing import not_profiled, opened_there
from .measured import device_facts, trace_facts
from .model import model_places
from .option import choice
from .report import Table, TimeLeft, facts_of, print_facts, progress, show, tell
from .rescue import rescued

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..db.store import Store
    from ..engines.measured import MeasuredEngine
    from ..planner.plans.plan import Plan
    from ..profiler.prompts import Prompt
    from ..profiler.records.model import ModelIdentity
    from ..tuning.engines.profile import EngineProfile
    from ..tuning.engines.validate import EngineValidateRequest, EngineValidation
    from .plan import PlanArgs
    from .profile import ProfileArgs
    from .validate import ValidateArgs

PROFILE = {
    "engine",
    "target",
    "drafters",
    "draft_models",
    "prompts",
    "workload",
    "dtype",
    "batches",
    "seed",
    "store",
    "as_json",
}
TOLD = {"max_new_tokens", "max_prompt_tokens", "sample"}  # of profile and validate alike
PLAN = {"engine", "target", "device", "dtype", "workload", "batches", "seed", "store", "as_json", "output"}
VALIDATE = {"engine", "target", "prompts", "dtype", "workload", "batches", "rounds", "seed", "store", "as_json"}
TURNS = 4  # of every round of a validation

option = choice(
    "Use an engine instead of spectune's own decoder: one that runs here, on the CPU, or whose server is given.",
    sorted({*RUNNING, *SERVERS}),
    "--engine",
)
Json = dict[str, Any]  # JSON values


def profile_command(args: ProfileArgs, prompts: Sequence[Prompt]) -> None:
    """Profile an engine, keep it, and print what it costs."""
    from ..db import open_store
    from ..profiler.hub import resolve_model
    from ..tuning.engines.profile import EngineRequest, profile_engine
    from ..tuning.request import Models

    assert args.engine is not None and args.target is not None, "the command refuses an engine without a target"
    require_only(PROFILE | TOLD)
    models = Models(target=resolve_model(args.target), drafters=model_places(args.drafters))
    own: Json = {"models": models, "prompts": prompts, "dtype": _dtype(args.engine, args.dtype)}
    own["concurrencies"] = _concurrencies(args.engine, args.batches)
    request = EngineRequest(**(fields_of(EngineRequest, args) | own))
    with tempfile.TemporaryDirectory() as folder, open_store(args.store) as store:
        running = _running(args.engine, models.target, models.drafters, request.dtype, Path(folder))
        with progress(args.settings) as report:
            done = profile_engine(request, running, store, progress=report)
        facts = _profile_facts(done, store.url)
        print_facts(facts, _profile_shown(facts), as_json=args.as_json)
        tell(args.settings, f"kept in {store.url}; next: spectune plan --engine {args.engine} --target {args.target}")


def plan_command(args: PlanArgs) -> None:
    """Plan for an engine, keep the plan apart from our own decoder's, and print it with the engine's command."""
    from ..planner.plans.document import plan_to_json
    from ..report.file import require_writable, write_whole
    from ..tuning.engines.plan import EnginePlanRequest, plan_engine
    from .device import is_here, named_device

    if args.engine is None or args.target is None:
        raise click.UsageError("Give --target PATH|NAME of a model that was profiled with --engine.")
    require_only(PLAN)
    require_writable(args.output)
    with opened_there(args.store, not_profiled(args.target, f"--engine {args.engine} ")) as store:
        request = EnginePlanRequest(
            engine=args.engine,
            target=_target(args.target, store),
            device=named_device("cpu" if args.device == "auto" else args.device, store),
            dtype="" if args.dtype in (None, "auto") else args.dtype,
            workload=args.workload or "default",
            concurrencies=args.batches,
            seed=args.seed,
        )
        number, made = plan_engine(request, store, partial(rescued, "plan", output=args.output))
        if args.output is not None:
            write_whole(args.output, plan_to_json(made))
        if args.as_json:
            click.echo(plan_to_json(made))
        else:
            show(_plan_shown(args.engine, number, made, store))
        written = "" if args.output is None else f", written to {args.output}"
        following = f"; next: spectune validate --engine {args.engine} --target {args.target}"
        more = following if is_here(args.device) else ""
        tell(args.settings, f"plan {number}, kept in {store.url}{written}{more}")


def _plan_shown(engine: str, number: int, made: Plan, store: Store) -> Iterator[Table | str]:
    from ..tuning.export import ExportRequest, export_from_store
    from .cells import plan_table
    from .export import exported_shown

    exported = export_from_store(made, ExportRequest(engine=engine), store)
    yield plan_table(made)
    yield from (f"note: {note}" for note in made.provenance.notes)
    yield from exported_shown(exported, are_files_shown=False)
    if exported.files:
        yield f"files it reads: spectune export --engine {engine} --plan {number} -o FOLDER"


def validate_command(args: ValidateArgs, prompts: Sequence[Prompt]) -> EngineValidation:
    """Measure an engine's plan on it, keep the outcome beside the plan, print and return it."""
    from ..profiler.hub import resolve_model
    from ..tuning.engines.validate import newest_engine_plan, validate_engine

    assert args.engine is not None and args.target is not None, "the command refuses an engine without a target"
    require_only(VALIDATE | TOLD | {"fail_above"})
    place = resolve_model(args.target)
    opened = opened_there(args.store, not_profiled(args.target, f"--engine {args.engine} "))
    with opened as store, tempfile.TemporaryDirectory() as folder:
        request = _validation_of(args, place, prompts, store)
        _, plan = newest_engine_plan(request.plan, store)
        places = {name: Path(model.location) for name, model in plan.drafters}
        running = _running(args.engine, place, places, args.dtype or plan.dtype, Path(folder))
        with progress(args.settings) as report:
            done = validate_engine(
                request, running, store, progress=TimeLeft(report), guard=partial(rescued, "validation")
            )
        pairs = zip(done.validation.rows, done.checks, strict=True)
        rows = [validation_facts(row) | facts_of(check) for row, check in pairs]
        facts = {"plan": done.validation.plan_id, "rows": rows, "store": store.url}
        print_facts(facts, (validation_table(done.validation), _checks_table(done)), as_json=args.as_json)
        for note in done.notes:
            tell(args.settings, note)
        tell(args.settings, f"kept in {store.url} beside plan {done.validation.plan_id}")
    return done


def _validation_of(args: ValidateArgs, place: Path, prompts: Sequence[Prompt], store: Store) -> EngineValidateRequest:
    from ..profiler.device import detect
    from ..tuning.engines.plan import EnginePlanRequest
    from ..tuning.engines.validate import EngineValidateRequest
    from ..tuning.profiled_last import workload_planned_last

    assert args.engine is not None, "an engine is validated"
    model, device = _target(str(place), store), detect("cpu")
    workload = args.workload or workload_planned_last(model, device, 0.0, store, engine=args.engine).last
    return EngineValidateRequest(
        plan=EnginePlanRequest(engine=args.engine, target=model, device=device, workload=workload, seed=args.seed),
        prompts=prompts,
        concurrencies=args.batches,
        max_new_tokens=args.max_new_tokens,
        max_prompt_tokens=args.max_prompt_tokens,
        turns=TURNS * args.rounds,
        seed=args.seed,
    )


def _running(engine: str, target: Path, drafters: Mapping[str, Path], dtype: str, folder: Path) -> MeasuredEngine:
    from ..engines.running import run_engine
    from ..profiler.cpu import torch_threads

    return run_engine(engine, target, drafters, dtype=dtype, threads=torch_threads(), folder=folder)


def _dtype(engine: str, asked: str) -> str:
    """Return the number format; for "auto" the device's native one where the engine runs it."""
    from ..engines.running import own_dtype
    from ..profiler.device import detect
    from ..profiler.records.device import AUTO_DTYPE

    device = detect("cpu")
    return own_dtype(engine, device.native_dtype) if asked == AUTO_DTYPE else asked


def _concurrencies(engine: str, asked: tuple[int, ...]) -> tuple[int, ...]:
    """Return the typed batches; else 1, and 4 where the engine is a server, which decodes several sequences."""
    source = click.get_current_context().get_parameter_source("batches")
    if source == ParameterSource.COMMANDLINE:
        return asked
    return (1, 4) if engine in SERVERS else (1,)


def _target(text: str, store: Store) -> ModelIdentity:
    """Return the model at a path or of an id in the cache; else the one the store knows by this name or key."""
    from ..profiler.hub import cached_model
    from ..tuning.engines.models import identify_engine_model
    from .model import named_model

    path = cached_model(text) or Path(text)
    return identify_engine_model(path) if path.exists() else named_model(text, store)


def require_only(known: set[str], of: str = "of spectune's own decoder; leave it out with --engine") -> None:
    """Raise UsageError for the first option that was typed and is not known."""
    context = click.get_current_context()
    typed = [
        parameter
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE and parameter.name not in known
    ]
    if typed:
        raise click.UsageError(f"{typed[0].opts[0]} is {of}.")


def _profile_facts(done: EngineProfile, url: str) -> Json:
    rows = [
        {
            "role": surface.role,
            "concurrency": cell.batch,
            "length": cell.tokens - 1,
            "round_ms": cell.median_ms,
            "error": cell.spread_ms / cell.median_ms if len(cell.repeats_ms) > 1 else None,
            "repeats": len(cell.repeats_ms),
        }
        for surface in done.surfaces
        for cell in surface.measurements
        if cell.failure is None
    ]
    names = {f"round:{model.key}": f"round:{name}" for name, model in done.identities.drafters.items()}
    for row in rows:
        row["role"] = names.get(str(row["role"]), row["role"])
    return {
        "engine": facts_of(done.facts),
        "device": device_facts(done.device),
        "rounds": rows,
        "traces": [trace_facts(trace) for trace in done.traces],
        "notes": list(done.notes),
        "seconds": done.seconds,
        "store": url,
    }


def _profile_shown(facts: Json) -> Iterator[Table | str]:
    columns = ("role", "concurrency", "length", "round_ms", "repeats")
    rows = sorted(
        ([row[name] for name in columns] + [_percent(row["error"])] for row in facts["rounds"]),
        key=lambda row: (row[1], row[0], row[2]),
    )
    title = f"rounds of {facts['engine']['name']} {facts['engine']['version']} on {facts['device']['label']}"
    shown = ("who drafts", "sequences", "length", "ms", "turns", "standard error")
    yield Table(title=title, columns=shown, rows=rows)
    traces = [(trace["drafter"], trace["positions"], trace["acceptance_by_rank"][0]) for trace in facts["traces"]]
    yield Table(title="its drafters", columns=("drafter", "positions", "right at one"), rows=traces)
    yield from (f"note: {note}" for note in facts["notes"])
    yield f"took {facts['seconds']:.0f} s"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _checks_table(done: EngineValidation) -> Table:
    rows = [
        (
            check.concurrency,
            check.drafted,
            check.accepted,
            row.tokens_per_round,
            row.predicted_tokens_per_round,
            check.neighbour,
            check.neighbour_tokens_per_s,
        )
        for row, check in zip(done.validation.rows, done.checks, strict=True)
    ]
    columns = ("sequences", "drafted", "accepted", "tokens a round", "predicted", "beside it", "its tokens/s")
    return Table(title="what the engine counted: the plan's setting took effect", columns=columns, rows=rows)
