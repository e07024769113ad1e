"""`spectune plan`: from measurements to the fastest way of decoding."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from . import engine as engines
from . import options, output
from .report import print_table, progress, tell
from .rescue import rescued
from .settings import Settings

if TYPE_CHECKING:
    from ..planner.plans.plan import Plan
    from ..tuning.documents import PlanFiles
    from ..tuning.plan import Effort
    from ..tuning.steps import Guard

# options that files answer
FROM_FILES = ("target", "device", "dtype", "regime", "workload", "temperature", "estimated")


@click.command()
@engines.option
@click.option("--target", metavar="PATH|NAME", help="Folder, or a name or key that the store knows.")
@options.device
@options.dtype
@click.option(
    "--regime",
    type=click.Choice(["eager", "cuda-graph", "compiled"]),
    help="Regime whose timings price it; else the one the target was profiled in last.",
)
@options.workload
@options.temperature
@click.option(
    "--batch",
    "batches",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Batch sizes; else those whose rounds were timed.",
)
@click.option(
    "--context",
    "contexts",
    default="",
    callback=options.counts,
    metavar="N,N,...",
    help="Contexts; else those that these batches have in common.",
)
@click.option(
    "--slo",
    "bound",
    metavar="METRIC<=Nms",
    callback=options.latency_bound,
    help="Latency to keep where possible: 'itl<=30ms', 'p90_itl<=50ms'.",
)
@click.option(
    "--new-tokens",
    metavar="N",
    type=click.IntRange(2),
    help="Expected length of an answer: choose by whole requests, in which drafters read the prompt, too.",
)
@click.option(
    "--cached-share",
    default=0.0,
    metavar="SHARE",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    help="With --new-tokens: how much of a prompt an earlier text began with, which is not read anew, e.g. 0.8.",
)
@click.option(
    "--max-memory",
    "max_memory_bytes",
    metavar="SIZE",
    callback=options.size,
    help="Most memory at the peak of decoding, e.g. 24GiB.",
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
@output.option
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw it: .png, or .html to look into.")
@click.pass_obj
def plan(
    settings: Settings,
    /,
    engine: str | None,
    target: str | None,
    device: str,
    regime: str | None,
    surfaces: tuple[Path, ...],
    traces: tuple[Path, ...],
    lossy_files: tuple[Path, ...],
    estimated: str | None,
    optuna_storage: str | None,
    jobs: int | None,
    store: str | None,
    explain: bool,
    as_json: bool,
    output: Path | None,
    plot: Path | None,
    **wanted: Any,  # the other fields of a PlanRequest, which checks them
) -> None:
    """Choose how to decode fastest, and say why.

    Replays chains, prompt lookup and trees of every drafter on what `spectune profile` recorded, and
    keeps the best per batch and context. Plain decoding is always a candidate.

    What if: --surface and --trace plan from files of `spectune show surface|trace -o`, without a
    device, a store or models; nothing is kept then, unless --store says where to keep the plan.
    Lossy ways compete only with --allow-lossy and only where `spectune lossy` measured what they cost.
    --estimate plans the store's traces on surfaces computed for a device that is not here; surfaces
    and plan are kept, labelled, and no decoder takes them for measured ones.

    \b
        spectune plan --target path/to/target --explain
        spectune plan --target path/to/target --batch 1,8 --slo 'itl<=30ms' -o plan.json
        spectune plan --target path/to/target --estimate H200 --max-memory 24GiB
        spectune plan --surface target.json --surface small.json --trace trace.json
        spectune plan --engine llama.cpp --target target.gguf
        spectune plan --target path/to/target --trials 200 --optuna-storage sqlite:///trials.db --jobs 4
    """
    from ..planner.lossy.run import read_runs
    from ..planner.plans.document import plan_to_json
    from ..tuning.documents import PlanFiles
    from ..tuning.plan import Effort
    from ..tuning.tables import read_table
    from .output import require_writable, write_whole

    if engine is not None:
        if target is None:
            raise click.UsageError("Give --target PATH|NAME of a model that was profiled with --engine.")
        asked = {**wanted, "store": store, "as_json": as_json}
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
        effort = Effort(jobs=jobs, optuna_storage=optuna_storage, progress=report)
        guard = partial(rescued, "plan", output=output)
        if files is not None:
            made, kept = _from_files(files, store, wanted, effort, guard)
        else:
            assert target is not None, "a plan from a store was refused without a target"
            made, kept = _from_store(target, device, estimated, store, wanted, effort, guard)
    if output is not None:
        write_whole(output, plan_to_json(made))
    if plot is not None:
        _draw(made, plot)
    _print(made, as_json=as_json, explain=explain)
    written = "".join(f", written to {path}" for path in (output, plot) if path is not None)
    following = f"; next: spectune validate --target {target}" if target is not None and estimated is None else ""
    tell(settings, f"kept in {kept}{written}{following}" if kept else f"kept in no store{written}")


def _require_one_way(is_from_files: bool, target: str | None, estimated: str | None) -> None:
    """Refuse options that contradict each other: files say themselves what they are of."""
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
    files: PlanFiles, store: str | None, wanted: dict[str, Any], effort: Effort, guard: Guard
) -> tuple[Plan, str | None]:
    """Return the plan, and where it is kept: nowhere unless a store is named."""
    from ..planner.plans.document import plan_to_json
    from ..tuning.documents import inputs_from_files
    from ..tuning.plan import keep_plan, solve_plan
    from ..tuning.request import PlanRequest

    inputs = inputs_from_files(files)
    told = {name: getattr(inputs, name) for name in ("target", "device", "dtype", "workload", "temperature")}
    made = solve_plan(inputs, PlanRequest(**(wanted | told)), effort)
    if store is None:
        return made, None
    from ..db.store import open_store

    with guard(plan_to_json(made)), open_store(store) as opened:
        keep_plan(made, inputs, opened)
        return made, opened.url


def _from_store(
    target: str,
    device: str,
    estimated: str | None,
    store: str | None,
    wanted: dict[str, Any],
    effort: Effort,
    guard: Guard,
) -> tuple[Plan, str]:
    """Return the plan and the store it is kept in."""
    from ..db.store import open_store
    from ..profiler.catalogue import catalogued
    from ..profiler.device import detect
    from ..tuning.estimates.inputs import inputs_on_estimates
    from ..tuning.inputs import inputs_from_store
    from ..tuning.plan import solve_and_store
    from ..tuning.request import PlanRequest
    from .model import named_model

    with open_store(store) as opened:
        place = detect(device) if estimated is None else catalogued(estimated).device
        request = PlanRequest(target=named_model(target, opened), device=place, **wanted)
        inputs = (inputs_from_store if estimated is None else inputs_on_estimates)(request, opened)
        return solve_and_store(inputs, request, opened, effort, guard), opened.url


def _print(plan: Plan, *, as_json: bool, explain: bool) -> None:
    from ..planner.plans.document import plan_to_json
    from .cells import plan_table

    if as_json:
        click.echo(plan_to_json(plan))
    elif not explain:
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
