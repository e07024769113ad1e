"""`spectune export`: a plan as the settings of an engine that people run in production."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options
from .command import Command
from .existing import as_it_is, require_there
from .report import Settings, Table, facts_of, print_json, print_table, tell

if TYPE_CHECKING:
    from ..db.store import Store
    from ..planner.inputs import PlanInputs
    from ..planner.plans.plan import Plan
    from ..runtime.engines.exported import Dropped, Exported

NO_PLAN = "so no plan either; run: spectune plan, or give --plan FILE"
NAMES = ("sglang", "vllm", "tensorrt-llm", "transformers", "llama.cpp", "openvino")  # a test compares them


@click.command(cls=Command, stray="name the plan with --plan 3")
@click.option("--engine", required=True, type=click.Choice(NAMES), help="Whose settings.")
@click.option("--engine-version", metavar="V", help="The newest whose options were recorded unless given.")
@click.option("--plan", "plan", metavar="PLAN", help="A number of the list or a file; else the newest for the engine.")
@click.option(
    "--target",
    "--model",
    "target",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Where the target lies now; else where it was profiled.",
)
@options.drafters
@options.files_of("surface", "Solve again")
@options.files_of("trace", "Solve again")
@options.store
@click.option("-o", "folder", metavar="DIR", type=click.Path(path_type=Path), help="Write the files to this folder.")
@options.as_json
@click.pass_obj
def export(
    settings: Settings,
    /,
    engine: str,
    engine_version: str | None,
    plan: str | None,
    target: Path | None,
    drafters: dict[str, str],
    surfaces: tuple[Path, ...],
    traces: tuple[Path, ...],
    store: str | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Write a plan as an engine's settings.

    Prints the command, the files it reads, and what of the plan the engine cannot carry. Settings that the engine
    lacks are solved again on the plan's own measurements: from the store, or from --surface and --trace. Without
    measurements they come from the alternatives in the plan. A plan made with `spectune plan --engine` also says
    how the engine ran.

    \b
        spectune export --engine vllm
        spectune export --engine sglang --plan plan.json -o deploy
        spectune export --engine llama.cpp --plan 3 --drafter small=small.gguf --json
    """
    from ..db import open_store
    from ..tuning.export import ExportRequest, export_from_store
    from ..tuning.export import export as exported_plan

    request = ExportRequest(
        engine=engine,
        version=engine_version,
        target=target,
        drafters={name: Path(text) for name, text in drafters.items()},
    )
    if store is not None:
        require_there(store, NO_PLAN)
    with open_store(as_it_is(store)) as opened:
        planned, notes = _plan(plan, engine, opened, store)
        if surfaces or traces:
            found = exported_plan(planned, request, _from_files(surfaces, traces))
        else:
            found = export_from_store(planned, request, opened)
    _require_models(found, planned, target, drafters)
    found = replace(found, notes=(*notes, *_of_another(target, planned), *found.notes))
    written = [] if folder is None else _write(found, folder)
    if as_json:
        print_json({**facts_of(found), "written": [str(path) for path in written]})
    else:
        print_exported(found, are_files_shown=not written)
    for path in written:
        tell(settings, f"written to {path}")


def _require_models(found: Exported, plan: Plan, target: Path | None, drafters: Mapping[str, str]) -> None:
    """Raise RequestError where the output reads a model that is neither named nor where it was profiled."""
    from ..errors import RequestError

    written = "\n".join((found.command, *(text for _, text in found.files)))
    models = [("target", plan.target, "--target PATH", target is not None)]
    models += [("drafter", model, f"--drafter {name}=PATH", name in drafters) for name, model in plan.drafters]
    for kind, model, option, is_named in models:
        if model.location in written and not (is_named or Path(model.location).exists()):
            raise RequestError(
                f"the {kind} {model.name} is no longer at {model.location}, where it was profiled; say where it lies "
                f"where the engine runs: {option}"
            )


def _of_another(target: Path | None, plan: Plan) -> tuple[str, ...]:
    """Return a note for readers on a local target that is not the plan's."""
    from ..profiler.identity import identify

    if target is None or not (target / "config.json").is_file() or identify(target).key == plan.target.key:
        return ()
    return (f"the model at {target} is not the plan's target, {plan.target.name}: these settings were chosen for that",)


def _plan(text: str | None, engine: str, store: Store, place: str | None) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of a file or number, else the newest for the engine or our decoder, and notes for readers."""
    from ..errors import RequestError
    from ..planner.plans.document import plan_from_json
    from ..tuning.export import newest_plan_for, notes_on

    if text is not None and Path(text).is_file():
        return plan_from_json(_text(Path(text))), ()
    if text is not None and not text.isdecimal():
        raise RequestError(f"there is no plan file {text}, and a plan of the store has a number; see spectune list")
    require_there(place, NO_PLAN)
    number = newest_plan_for(engine, store) if text is None else int(text)
    return plan_from_json(store.plan(number)), notes_on(number, store)


def _text(path: Path) -> str:
    from ..errors import RequestError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"cannot read the plan {path} ({reason}); write one with: spectune plan -o FILE") from error


def _from_files(surfaces: tuple[Path, ...], traces: tuple[Path, ...]) -> PlanInputs:
    from ..tuning.documents import PlanFiles, inputs_from_files

    return inputs_from_files(PlanFiles(surfaces=surfaces, traces=traces))


def _write(found: Exported, folder: Path) -> list[Path]:
    from ..errors import RequestError
    from ..report.file import write_whole

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"cannot make the folder {folder} ({error.strerror}); choose another") from error
    files = [*found.files, ("command.sh", f"{found.command}\n")]
    for name, text in files:
        write_whole(folder / name, text)
    return [folder / name for name, _ in files]


def print_exported(found: Exported, *, are_files_shown: bool) -> None:
    """Print an engine's command, the files it reads, and what the engine cannot carry."""
    click.echo(found.command)
    for name, text in found.files if are_files_shown else ():
        click.echo(f"\n# {name}\n{text.rstrip()}")
    click.echo("")
    if found.dropped:
        print_table(_dropped_table(found))
    click.echo(_verdict(found))
    for note in found.notes:
        click.echo(f"note: {note}")


def _dropped_table(found: Exported) -> Table:
    from ..planner.strategies.naming import name_of

    return Table(
        title=f"what {found.engine} {found.version} cannot carry",
        columns=("batch", "context", "planned", "gets", "loses %", "because"),
        rows=[
            (
                *(one.batch, one.context, name_of(one.wanted, one.wanted_drafter), _gets(one)),
                *(None if one.loss is None else 100.0 * one.loss, one.reason),
            )
            for one in found.dropped
        ],
    )


def _gets(one: Dropped) -> str:
    """Return what a cell gets instead; an engine's own variant has the price of the nearest way."""
    from ..planner.strategies.naming import name_of

    own, like, code = one.gets.rpartition(", priced as ")
    return own + like + name_of(code, one.gets_drafter)


def _verdict(found: Exported) -> str:
    if not found.dropped:
        return f"{found.engine} {found.version} carries all of the plan"
    if found.kept is None:
        return "what this keeps of the plan's speed is not known in every cell"
    return f"keeps {found.kept:.1%} of the plan's speed, the geometric mean over its cells ({found.basis})"
