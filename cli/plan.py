"""`spectune plan`: from measurements to the fastest way of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from . import engine as engines
from . import options, servers
from .command import Args, command, fields_of
from .existing import NOTHING, not_profiled, opened_there
from .option import choice, flag, option, path_option, real, whole
from .report import print_table, progress, tell, tell_workload
from .rescue import rescued

if TYPE_CHECKING:
    from ..db.store import Store
    from ..planner.plans.plan import Plan
    from ..profiler.records.device import Device
    from ..profiler.records.model import ModelIdentity
    from ..tuning.plan import SolveOptions
    from ..tuning.steps import Guard

STRAY = "name the model with --target MODEL; see a plan with: spectune show plan 3"
# options that files answer
FROM_FILES = ("target", "device", "dtype", "regime", "workload", "temperature", "estimated")


@dataclass(frozen=True, kw_only=True)
class PlanArgs(Args):
    """What was typed; the fields of a PlanRequest have their names there, and it checks them."""

    command: tuple[str, ...] = options.server_command
    engine: str | None = engines.option
    url: str | None = options.url
    target: str | None = options.target.but(
        required=False, metavar="PATH|NAME", help="Folder, or a name or key that the store knows."
    )
    device: str = options.device.but(
        callback=options.one_device,
        help="auto, cpu, gpu or cuda:N of this machine, or a name or fingerprint that the store knows.",
    )
    dtype: str | None = options.profiled_dtype
    regime: str | None = choice("How forwards run; else the regime profiled last.", ["eager", "cuda-graph", "compiled"])
    workload: str | None = options.profiled_workload
    temperature: float = options.temperature
    batches: tuple[int, ...] = options.batches.but(
        help="Batch sizes (concurrency); else those whose rounds were timed."
    )
    contexts: tuple[int, ...] = options.contexts.but(
        help="Context lengths, in tokens; else those that these batches have in common."
    )
    slo: str | None = option(
        "Latency to keep: 'tpot<=30ms' (itl means the same), 'p90_tpot<=50ms', of a server 'tpot<=20ms,ttft<=500ms'; "
        "where nothing keeps it, exits with 1.",
        metavar="METRIC<=Nms",
    )
    new_tokens: int | None = whole(
        "Expected output length: choose by whole requests, prefill by target and drafter included.",
        least=2,
        metavar="N",
    )
    cached_share: float = real(
        "With --new-tokens: share of a prompt in the prefix cache, for example 0.8.",
        most=1.0,
        is_open="most",
        absent=0.0,
        metavar="SHARE",
    )
    max_memory_bytes: int | None = option(
        "Most memory at the peak of decoding, weights and KV cache: 24G is 24 GiB.",
        "--max-memory",
        metavar="SIZE",
        callback=options.size,
    )
    tables: tuple[Path, ...] = path_option(
        "Frozen table that Cacheback may draft from; `train cacheback` makes one. Repeatable.", "--table", multiple=True
    )
    trials: int = whole("Optuna's, per cell and kind.", least=0, default=24)
    optuna_storage: str | None = option(
        "Keep trials there: sqlite:///FILE, another URL, a journal file.", metavar="URL"
    )
    jobs: int | None = whole("Processes; else as many as pay.", metavar="N")
    surfaces: tuple[Path, ...] = options.files_of("surface", "Plan")
    traces: tuple[Path, ...] = options.files_of("trace", "Plan")
    allow_lossy: bool = options.allow_lossy
    lossy_files: tuple[Path, ...] = path_option(
        "Lossy ways that may compete, as `spectune lossy -o` wrote them; repeatable.", "--lossy", multiple=True
    )
    max_quality_loss: float | None = real(
        "Most that a lossy way may lose, at the upper end of its interval.", metavar="LOSS"
    )
    estimated: str | None = options.estimated.but(help="Plan for a catalogued device on computed surfaces.")
    seed: int = options.seed
    store: str | None = options.store
    explain: bool = flag("Say why, cell by cell; with --json on stderr.")
    as_json: bool = options.as_json
    output: Path | None = options.output
    plot: Path | None = options.plot

    @property
    def is_from_files(self) -> bool:
        """Whether files are planned from, and no store."""
        return bool(self.surfaces or self.traces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A plan, and the store that it is in, if any, with its number there."""

    plan: Plan
    store: str | None = None
    number: int | None = None


@command(PlanArgs, basic="target batch context slo new-tokens max-memory workload estimate explain output")
def plan(args: PlanArgs) -> None:
    """Find the fastest way to decode, and say why.

    Replays chains, prompt lookup and draft trees of every drafter on what `spectune profile` recorded. Keeps the
    fastest for each batch size and context. Plain decoding, the baseline, always competes. Number format, regime
    and workload are those profiled last unless you name them. With --device this machine plans for another one
    that the store holds measurements of; it needs neither that device nor torch.

    Lossy ways compete only with --allow-lossy, and only where `spectune lossy` measured their loss. --estimate
    plans for a device that is not here: latencies are computed, acceptance is the recorded one. Such a plan is
    labelled, and decoders follow it only as a guess. --surface and --trace plan from files, without a device, a
    store or models. Such a plan is saved only where --store names a store.

    \b
        spectune plan --target path/to/target --explain
        spectune plan --target path/to/target --batch 1,8 --slo 'tpot<=30ms' -o plan.json
        spectune plan --target path/to/target --estimate H200 --max-memory 24G
        spectune plan --surface target.json --surface small.json --trace trace.json
        spectune plan --engine llama.cpp --target target.gguf
        spectune plan --engine vllm -- vllm serve MODEL
        spectune plan --target path/to/target --trials 200 --optuna-storage sqlite:///trials.db --jobs 4
    """
    from ..errors import PlanError
    from ..planner.plans.document import plan_to_json
    from ..planner.plans.objective import parse_bound
    from ..planner.reasons.explain import out_of_reach
    from ..report.file import require_writable, write_whole

    if servers.is_server(args.engine, args.command, args.url, STRAY):
        _plan_server(args)
        return
    bound = None if args.slo is None else options.bounded(parse_bound, args.slo)
    if args.engine is not None:
        engines.plan_command(args)
        return
    wanted = _wanted(args) | {"bound": bound}
    _require_one_way(args)
    require_writable(args.output)
    if args.plot is not None:
        _require_drawable(args.plot)
    made = _made(args, wanted)
    if args.output is not None:
        write_whole(args.output, plan_to_json(made.plan))
    if args.plot is not None:
        _draw(made.plan, args.plot)
    _print(made.plan, as_json=args.as_json, explain=args.explain)
    _tell_made(args, made)
    if missed := out_of_reach(made.plan):
        number = made.number
        unless = "" if number is None else f"; until it is retired, plan {number} counts: spectune retire {number}"
        raise PlanError(missed + unless)


def _tell_made(args: PlanArgs, made: Made) -> None:
    """Say where a plan is, and what to do next."""
    from .device import is_here

    written = "".join(f", written to {path}" for path in (args.output, args.plot) if path is not None)
    is_ours = args.target is not None and args.estimated is None and is_here(args.device)
    following = f"; next: spectune validate --target {args.target}" if is_ours else ""
    kept_as = f"plan {made.number}, kept in {made.store}" if made.store else "kept in no store"
    tell(args.settings, f"{kept_as}{written}{following}")


def _plan_server(args: PlanArgs) -> None:
    """Print what a server should draft by what was kept of it; PlanError where the choice does not keep --slo."""
    from ..errors import PlanError
    from ..planner.engines.served_choice import LatencyBounds, latency_bounds

    assert args.engine is not None, "a server has an engine"
    bounds = LatencyBounds() if args.slo is None else options.bounded(latency_bounds, args.slo)
    engines.require_only({"command", "engine", "url", "slo", "store", "as_json"}, "not of a server's plan")
    with opened_there(args.store, NOTHING) as opened:
        found, serving = servers.stored(args.engine, args.command, args.url, bounds, opened)
        servers.print_choice(found, serving, as_json=args.as_json)
    if missed := [one for one in found.choices if not one.fits]:
        told = "; ".join(
            f"at {one.concurrency} at once TPOT is {one.way.tpot_ms:.3g} ms and TTFT {one.way.ttft_ms:.3g} ms"
            for one in missed
        )
        raise PlanError(f"the choice does not keep {args.slo}: {told}; allow more with --slo, or serve fewer at once")


def _wanted(args: PlanArgs) -> dict[str, Any]:
    """Return the fields of a PlanRequest, files read; its target and device are still names."""
    from ..planner.lossy.run import read_runs
    from ..tuning.documents import read_table
    from ..tuning.request import PlanRequest

    return fields_of(PlanRequest, args) | {
        "regime": args.regime or "",
        "lossy": tuple(run for file in args.lossy_files for run in read_runs(file)),
        "tables": tuple(read_table(file) for file in args.tables),
    }


def _require_one_way(args: PlanArgs) -> None:
    """Refuse options that contradict each other: files name their own target."""
    context = click.get_current_context()

    def typed(names: tuple[str, ...]) -> list[str]:
        return [name for name in names if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]

    if args.is_from_files and (said := typed(FROM_FILES)):
        option = "--estimate" if said[0] == "estimated" else f"--{said[0]}"
        raise click.UsageError(f"{option} is for a plan from a store; surfaces and traces say what they are of.")
    if not args.is_from_files and args.target is None:
        raise click.UsageError("Give --target PATH|NAME, or files with --surface and --trace.")
    if args.estimated is not None and typed(("device",)):
        raise click.UsageError("--estimate plans for another device than one that is here; leave out --device.")


def _made(args: PlanArgs, wanted: dict[str, Any]) -> Made:
    from ..tuning.plan import SolveOptions

    with progress(args.settings) as report:
        report("solving the plan", 0.0)
        effort = SolveOptions(jobs=args.jobs, optuna_storage=args.optuna_storage, progress=report)
        guard = partial(rescued, "plan", output=args.output)
        return (_from_files if args.is_from_files else _from_store)(args, wanted, effort, guard)


def _from_files(args: PlanArgs, wanted: dict[str, Any], effort: SolveOptions, guard: Guard) -> Made:
    """Return a plan from files, kept nowhere unless a store is named."""
    from ..planner.plans.document import plan_to_json
    from ..tuning.documents import PlanFiles, inputs_from_files
    from ..tuning.plan import keep_plan, solve_plan
    from ..tuning.request import PlanRequest

    inputs = inputs_from_files(PlanFiles(surfaces=args.surfaces, traces=args.traces))
    of_files = {name: getattr(inputs, name) for name in ("target", "device", "dtype", "workload", "temperature")}
    made = solve_plan(inputs, PlanRequest(**(wanted | of_files)), effort)
    if args.store is None:
        return Made(plan=made)
    from ..db import open_store

    with guard(plan_to_json(made)), open_store(args.store) as opened:
        return Made(plan=made, store=opened.url, number=keep_plan(made, inputs, opened))


def _from_store(args: PlanArgs, wanted: dict[str, Any], effort: SolveOptions, guard: Guard) -> Made:
    from ..planner.plans.document import plan_to_json
    from ..profiler.catalogue import catalogued
    from ..tuning.estimates.inputs import inputs_on_estimates
    from ..tuning.inputs import inputs_from_store
    from ..tuning.plan import keep_plan, solve_plan
    from ..tuning.request import PlanRequest
    from .device import named_device
    from .model import named_model

    assert args.target is not None, "a plan from a store was refused without a target"
    with opened_there(args.store, not_profiled(args.target)) as opened:
        device = named_device(args.device, opened) if args.estimated is None else catalogued(args.estimated).device
        model = named_model(args.target, opened)
        last = _profiled_last(args, model, device, opened)
        request = PlanRequest(**(wanted | {"target": model, "device": device} | last))
        inputs = (inputs_from_store if args.estimated is None else inputs_on_estimates)(request, opened)
        made = solve_plan(inputs, request, effort)
        with guard(plan_to_json(made)):
            return Made(plan=made, store=opened.url, number=keep_plan(made, inputs, opened))


def _profiled_last(args: PlanArgs, target: ModelIdentity, device: Device, store: Store) -> dict[str, str]:
    """Return the number format and the workload of the last profile, where they are not named."""
    from ..tuning.profiled_last import dtype_profiled_last, workload_profiled_last

    found = {"dtype": args.dtype or dtype_profiled_last(target, device, args.regime or "", store)}
    if args.workload is not None:
        return found
    workloads = workload_profiled_last(target, args.temperature, store)
    tell_workload(args.settings, workloads, "profiled last")
    return {**found, "workload": workloads.last}


def _print(plan: Plan, *, as_json: bool, explain: bool) -> None:
    from ..planner.plans.document import plan_to_json
    from ..planner.reasons.verdict import verdict_lines
    from .cells import plan_table

    if as_json:
        click.echo(plan_to_json(plan))
    elif not explain:
        click.echo("".join(f"{line}\n" for line in verdict_lines(plan)))
        print_table(plan_table(plan))
        for note in plan.provenance.notes:
            click.echo(f"note: {note}")
    if explain:
        from ..planner.reasons.explain import explain_plan

        click.echo("\n".join(explain_plan(plan)), err=as_json)


def _require_drawable(plot: Path) -> None:
    from ..report.picture import require_picture

    require_picture(plot)


def _draw(plan: Plan, plot: Path) -> None:
    from ..report.picture import write_picture
    from ..report.plan import plan_figure

    write_picture(plot, plan_figure(plan))
