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
from .command import Command
from .existing import NOTHING, not_profiled, opened_there
from .report import Settings, print_table, progress, tell, tell_workload
from .rescue import rescued

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..db.store import Store
    from ..planner.plans.plan import Plan
    from ..profiler.records.device import Device
    from ..profiler.records.model import ModelIdentity
    from ..tuning.documents import PlanFiles
    from ..tuning.plan import SolveOptions
    from ..tuning.steps import Guard

STRAY = "name the model with --target MODEL; see a plan with: spectune show plan 3"
# options that files answer
FROM_FILES = ("target", "device", "dtype", "regime", "workload", "temperature", "estimated")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingDevice:
    """Where is decoded: on a device that is here or that the store knows, or on a catalogued one."""

    device: str
    estimated: str | None


@click.command(
    cls=Command,
    basic=(
        "target",
        "batch",
        "context",
        "slo",
        "new-tokens",
        "max-memory",
        "workload",
        "estimate",
        "explain",
        "output",
    ),
)
@servers.command
@engines.option
@servers.url
@click.option(
    "--target", "--model", "target", metavar="PATH|NAME", help="Folder, or a name or key that the store knows."
)
@click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="DEVICE",
    callback=options.one_device,
    help="auto, cpu, gpu or cuda:N of this machine, or a name or fingerprint that the store knows.",
)
@options.profiled_dtype
@click.option(
    "--regime",
    type=click.Choice(["eager", "cuda-graph", "compiled"]),
    help="How forwards run; else the regime profiled last.",
)
@options.profiled_workload
@options.temperature
@click.option(
    "--batch",
    "batches",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Batch sizes (concurrency); else those whose rounds were timed.",
)
@click.option(
    "--context",
    "contexts",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Context lengths, in tokens; else those that these batches have in common.",
)
@click.option(
    "--slo",
    metavar="METRIC<=Nms",
    help="Latency to keep: 'tpot<=30ms' (itl means the same), 'p90_tpot<=50ms', of a server 'tpot<=20ms,ttft<=500ms'; "
    "where nothing keeps it, exits with 1.",
)
@click.option(
    "--new-tokens",
    metavar="N",
    type=click.IntRange(2),
    help="Expected output length: choose by whole requests, prefill by target and drafter included.",
)
@click.option(
    "--cached-share",
    default=0.0,
    metavar="SHARE",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    help="With --new-tokens: share of a prompt in the prefix cache, for example 0.8.",
)
@click.option(
    "--max-memory",
    "max_memory_bytes",
    metavar="SIZE",
    callback=options.size,
    help="Most memory at the peak of decoding, weights and KV cache: 24G is 24 GiB.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Frozen table that Cacheback may draft from; `train cacheback` makes one. Repeatable.",
)
@click.option("--trials", default=24, show_default=True, type=click.IntRange(0), help="Optuna's, per cell and kind.")
@click.option("--optuna-storage", metavar="URL", help="Keep trials there: sqlite:///FILE, another URL, a journal file.")
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Processes; else as many as pay.")
@options.files_of("surface", "Plan")
@options.files_of("trace", "Plan")
@options.allow_lossy
@click.option(
    "--lossy",
    "lossy_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Lossy ways that may compete, as `spectune lossy -o` wrote them; repeatable.",
)
@click.option(
    "--max-quality-loss",
    metavar="LOSS",
    type=click.FloatRange(0.0),
    help="Most that a lossy way may lose, at the upper end of its interval.",
)
@click.option("--estimate", "estimated", metavar="DEVICE", help="Plan for a catalogued device on computed surfaces.")
@options.seed
@options.store
@click.option("--explain", is_flag=True, help="Say why, cell by cell; with --json on stderr.")
@options.as_json
@options.output
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw it: .png, or .html to look into.")
@click.pass_obj
def plan(
    settings: Settings,
    /,
    command: tuple[str, ...],
    engine: str | None,
    url: str | None,
    target: str | None,
    device: str,
    regime: str | None,
    surfaces: tuple[Path, ...],
    traces: tuple[Path, ...],
    lossy_files: tuple[Path, ...],
    estimated: str | None,
    slo: str | None,
    optuna_storage: str | None,
    jobs: int | None,
    store: str | None,
    explain: bool,
    as_json: bool,
    output: Path | None,
    plot: Path | None,
    **wanted: Any,  # the other fields of a PlanRequest, which checks them
) -> None:
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
    from ..planner.lossy.run import read_runs
    from ..planner.plans.document import plan_to_json
    from ..planner.plans.objective import parse_bound
    from ..planner.reasons.explain import out_of_reach
    from ..report.file import require_writable, write_whole
    from ..tuning.documents import PlanFiles, read_table
    from ..tuning.plan import SolveOptions
    from .device import is_here

    if servers.is_server(engine, command, url, STRAY):
        assert engine is not None
        _plan_server(engine, command, url, slo, store, as_json)
        return
    wanted["bound"] = None if slo is None else options.bounded(parse_bound, slo)
    if engine is not None:
        wanted["workload"] = wanted["workload"] or "default"
        if target is None:
            raise click.UsageError("Give --target PATH|NAME of a model that was profiled with --engine.")
        asked = {**wanted, "device": device, "store": store, "as_json": as_json}
        engines.plan_command(settings, engine, target, asked, output)
        return
    wanted["regime"] = regime or ""
    wanted["lossy"] = tuple(run for path in lossy_files for run in read_runs(path))
    wanted["tables"] = tuple(read_table(path) for path in wanted["tables"])
    files = PlanFiles(surfaces=surfaces, traces=traces) if surfaces or traces else None
    _require_one_way(files is not None, target, estimated)
    require_writable(output)
    if plot is not None:
        _require_drawable(plot)
    with progress(settings) as report:
        report("solving the plan", 0.0)
        effort = SolveOptions(jobs=jobs, optuna_storage=optuna_storage, progress=report)
        guard = partial(rescued, "plan", output=output)
        if files is not None:
            made, kept, number = _from_files(files, store, wanted, effort, guard)
        else:
            assert target is not None, "a plan from a store was refused without a target"
            place = DecodingDevice(device=device, estimated=estimated)
            made, kept, number = _from_store(settings, target, place, store, wanted, effort, guard)
    if output is not None:
        write_whole(output, plan_to_json(made))
    if plot is not None:
        _draw(made, plot)
    _print(made, as_json=as_json, explain=explain)
    written = "".join(f", written to {path}" for path in (output, plot) if path is not None)
    is_ours = target is not None and estimated is None and is_here(device)
    following = f"; next: spectune validate --target {target}" if is_ours else ""
    kept_as = f"plan {number}, kept in {kept}" if kept else "kept in no store"
    tell(settings, f"{kept_as}{written}{following}")
    if missed := out_of_reach(made):
        unless = "" if number is None else f"; until it is retired, plan {number} counts: spectune retire {number}"
        raise PlanError(missed + unless)


def _plan_server(
    engine: str, command: Sequence[str], url: str | None, slo: str | None, store: str | None, as_json: bool
) -> None:
    """Print what a server should draft by what was kept of it; PlanError where the choice does not keep `slo`."""
    from ..errors import PlanError
    from ..planner.engines.served_choice import LatencyBounds, latency_bounds

    bounds = LatencyBounds() if slo is None else options.bounded(latency_bounds, slo)
    engines.require_only({"command", "engine", "url", "slo", "store", "as_json"}, "not of a server's plan")
    with opened_there(store, NOTHING) as opened:
        found, serving = servers.stored(engine, command, url, bounds, opened)
        servers.print_choice(found, serving, as_json=as_json)
    if missed := [one for one in found.choices if not one.fits]:
        told = "; ".join(
            f"at {one.concurrency} at once TPOT is {one.way.tpot_ms:.3g} ms and TTFT {one.way.ttft_ms:.3g} ms"
            for one in missed
        )
        raise PlanError(f"the choice does not keep {slo}: {told}; allow more with --slo, or serve fewer at once")


def _require_one_way(is_from_files: bool, target: str | None, estimated: str | None) -> None:
    """Refuse options that contradict each other: files name their own target."""
    context = click.get_current_context()

    def typed(names: tuple[str, ...]) -> list[str]:
        return [name for name in names if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]

    if is_from_files and (said := typed(FROM_FILES)):
        option = "--estimate" if said[0] == "estimated" else f"--{said[0]}"
        raise click.UsageError(f"{option} is for a plan from a store; surfaces and traces say what they are of.")
    if not is_from_files and target is None:
        raise click.UsageError("Give --target PATH|NAME, or files with --surface and --trace.")
    if estimated is not None and typed(("device",)):
        raise click.UsageError("--estimate plans for another device than one that is here; leave out --device.")


def _from_files(
    files: PlanFiles, store: str | None, wanted: dict[str, Any], effort: SolveOptions, guard: Guard
) -> tuple[Plan, str | None, int | None]:
    """Return the plan, its store and its number there, None unless a store is named."""
    from ..planner.plans.document import plan_to_json
    from ..tuning.documents import inputs_from_files
    from ..tuning.plan import keep_plan, solve_plan
    from ..tuning.request import PlanRequest

    inputs = inputs_from_files(files)
    told = {name: getattr(inputs, name) for name in ("target", "device", "dtype", "workload", "temperature")}
    made = solve_plan(inputs, PlanRequest(**(wanted | told)), effort)
    if store is None:
        return made, None, None
    from ..db import open_store

    with guard(plan_to_json(made)), open_store(store) as opened:
        return made, opened.url, keep_plan(made, inputs, opened)


def _from_store(
    settings: Settings,
    target: str,
    place: DecodingDevice,
    store: str | None,
    wanted: dict[str, Any],
    effort: SolveOptions,
    guard: Guard,
) -> tuple[Plan, str, int]:
    from ..planner.plans.document import plan_to_json
    from ..profiler.catalogue import catalogued
    from ..tuning.estimates.inputs import inputs_on_estimates
    from ..tuning.inputs import inputs_from_store
    from ..tuning.plan import keep_plan, solve_plan
    from ..tuning.request import PlanRequest
    from .device import named_device
    from .model import named_model

    with opened_there(store, not_profiled(target)) as opened:
        device = named_device(place.device, opened) if place.estimated is None else catalogued(place.estimated).device
        model = named_model(target, opened)
        named = {**wanted, **_profiled_last(settings, model, device, wanted, opened)}
        request = PlanRequest(target=model, device=device, **named)
        inputs = (inputs_from_store if place.estimated is None else inputs_on_estimates)(request, opened)
        made = solve_plan(inputs, request, effort)
        with guard(plan_to_json(made)):
            return made, opened.url, keep_plan(made, inputs, opened)


def _profiled_last(
    settings: Settings, target: ModelIdentity, device: Device, wanted: dict[str, Any], store: Store
) -> dict[str, str]:
    """Return the number format and the workload of the last profile, where they are not named."""
    from ..tuning.profiled_last import dtype_profiled_last, workload_profiled_last

    found = {"dtype": wanted["dtype"] or dtype_profiled_last(target, device, wanted["regime"], store)}
    if wanted["workload"] is not None:
        return found
    workloads = workload_profiled_last(target, wanted["temperature"], store)
    tell_workload(settings, workloads, "profiled last")
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
