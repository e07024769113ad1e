"""`spectune export`: a plan as the settings of an engine that people run in production."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..engines.table import ENGINES
from . import options
from .command import Args, command
from .existing import as_it_is, require_there
from .option import choice, option, path_option
from .plan_name import document_of
from .report import Table, facts_of, print_facts, tell

if TYPE_CHECKING:
    from ..db.store import Store
    from ..engines.export import Dropped, Exported
    from ..planner.plans.plan import Plan
    from ..tuning.export import ExportRequest

NO_PLAN = "so no plan either; run: spectune plan, or give --plan FILE"


@dataclass(frozen=True, kw_only=True)
class ExportArgs(Args):
    """What was typed."""

    engine: str = choice("Whose settings.", tuple(ENGINES), required=True)
    engine_version: str | None = option("The newest whose options were recorded unless given.", metavar="V")
    plan: str | None = option("A number of the list or a file; else the newest for the engine.", metavar="PLAN")
    target: Path | None = path_option(
        "Where the target lies now; else where it was profiled.", "--target", "--model", "target", metavar="PATH"
    )
    drafters: dict[str, str] = options.drafters
    surfaces: tuple[Path, ...] = options.files_of("surface", "Solve again")
    traces: tuple[Path, ...] = options.files_of("trace", "Solve again")
    store: str | None = options.store
    folder: Path | None = path_option("Write the files to this folder.", "-o", metavar="DIR")
    as_json: bool = options.as_json


@command(ExportArgs, stray="name the plan with --plan 3")
def export(args: ExportArgs) -> None:
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
    from ..tuning.export import ExportRequest

    request = ExportRequest(
        engine=args.engine,
        version=args.engine_version,
        target=args.target,
        drafters={name: Path(text) for name, text in args.drafters.items()},
    )
    planned, found = _exported(args, request)
    _require_models(found, planned, args)
    written = [] if args.folder is None else _write(found, args.folder)
    facts = {**facts_of(found), "written": [str(path) for path in written]}
    print_facts(facts, exported_shown(found, are_files_shown=not written), as_json=args.as_json)
    for path in written:
        tell(args.settings, f"written to {path}")


def _exported(args: ExportArgs, request: ExportRequest) -> tuple[Plan, Exported]:
    """Return the plan, and an engine's settings with notes for readers."""
    from ..db import open_store
    from ..tuning.documents import PlanFiles, inputs_from_files
    from ..tuning.export import export, export_from_store

    if args.store is not None:
        require_there(args.store, NO_PLAN)
    with open_store(as_it_is(args.store)) as opened:
        planned, notes = _plan(args, opened)
        if args.surfaces or args.traces:
            inputs = inputs_from_files(PlanFiles(surfaces=args.surfaces, traces=args.traces))
            found = export(planned, request, inputs)
        else:
            found = export_from_store(planned, request, opened)
    return planned, replace(found, notes=(*notes, *_of_another(args.target, planned), *found.notes))


def _require_models(found: Exported, plan: Plan, args: ExportArgs) -> None:
    """Raise RequestError where the output reads a model that is neither named nor where it was profiled."""
    from ..errors import RequestError

    written = "\n".join((found.command, *(text for _, text in found.files)))
    models = [("target", plan.target, "--target PATH", args.target is not None)]
    models += [("drafter", model, f"--drafter {name}=PATH", name in args.drafters) for name, model in plan.drafters]
    for kind, model, flag, is_named in models:
        if model.location in written and not (is_named or Path(model.location).exists()):
            raise RequestError(
                f"the {kind} {model.name} is no longer at {model.location}, where it was profiled; say where it lies "
                f"where the engine runs: {flag}"
            )


def _of_another(target: Path | None, plan: Plan) -> tuple[str, ...]:
    """Return a note for readers on a local target that is not the plan's."""
    from ..profiler.identity import identify

    if target is None or not (target / "config.json").is_file() or identify(target).key == plan.target.key:
        return ()
    return (f"the model at {target} is not the plan's target, {plan.target.name}: these settings were chosen for that",)


def _plan(args: ExportArgs, store: Store) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan of a file or number, else the newest for the engine or our decoder, and notes for readers."""
    from ..errors import RequestError
    from ..planner.plans.document import plan_from_json
    from ..tuning.export import newest_plan_for, notes_on

    if args.plan is not None and Path(args.plan).is_file():
        return plan_from_json(document_of(Path(args.plan))), ()
    if args.plan is not None and not args.plan.isdecimal():
        raise RequestError(
            f"there is no plan file {args.plan}, and a plan of the store has a number; see spectune list"
        )
    require_there(args.store, NO_PLAN)
    number = newest_plan_for(args.engine, store) if args.plan is None else int(args.plan)
    return plan_from_json(store.plan(number)), notes_on(number, store)


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


def exported_shown(found: Exported, *, are_files_shown: bool) -> Iterator[Table | str]:
    """Yield an engine's command, the files it reads, and what the engine cannot carry."""
    yield found.command
    if are_files_shown:
        yield from (f"\n# {name}\n{text.rstrip()}" for name, text in found.files)
    yield ""
    if found.dropped:
        yield _dropped_table(found)
    yield _verdict(found)
    yield from (f"note: {note}" for note in found.notes)


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
