"""A plan's inputs from files that `spectune show surface|trace -o` wrote: no device, store or model is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..errors import PlanError, RequestError, SpectuneError
from ..planner.inputs import DrafterInputs, PlanInputs, with_weights
from ..planner.records.frozen_table import FrozenTable
from ..planner.records.recording import texts_of
from ..profiler.records.acceptance import AcceptanceTrace
from ..profiler.records.device import Device
from ..profiler.records.document import SurfaceDocument, TraceDocument
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import DRAFT_ROLES, READ, RESUME, SELF
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import from_json, to_json
from .estimates.host_time import UNKNOWN, no_host_time
from .host_notes import note_of_drafters, note_of_rounds
from .inputs import readings_of
from .parts import footprints_of
from .positions import note_of_reach

Document = TypeVar("Document", SurfaceDocument, TraceDocument)
Surfaces = Mapping[Path, SurfaceDocument]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFiles:
    """Which files a plan is made from: surfaces of a target and its drafters on one device, traces of the drafters."""

    surfaces: tuple[Path, ...]
    traces: tuple[Path, ...]

    def __post_init__(self) -> None:
        if not self.surfaces or not self.traces:
            raise RequestError(
                f"a plan from files needs surfaces and traces, got {len(self.surfaces)} and {len(self.traces)}; give "
                "--surface for the target and every drafter, and --trace for every drafter"
            )


def inputs_from_files(files: PlanFiles) -> PlanInputs:
    """Return the plan inputs that the files hold; the target and its device are in them.

    RequestError where a file cannot be read or is no such document; or one is missing, double or unused; PlanError
    where the files do not belong together.
    """
    surfaces = {path: _document(SurfaceDocument, path) for path in files.surfaces}
    traces = [_document(TraceDocument, path).trace for path in files.traces]
    target = _target(traces, files.traces)
    verify = _of_model(surfaces, target, "verify", "the traces' target")
    drafted = with_weights(traces)
    drafts = [
        _of_model(surfaces, trace.drafter, _draft_role(surfaces, trace.drafter), trace.drafter_name)
        for trace in drafted
    ]
    resumes, readers = _resumes(surfaces, drafts), {target, *(trace.drafter for trace in drafted)}
    readings = [path for path, each in surfaces.items() if each.surface.role == READ and each.surface.model in readers]
    _require_used(surfaces, {verify, *drafts, *resumes.values(), *readings})
    found, temperature = surfaces[verify], traces[0].temperature
    overhead = found.overhead or no_host_time(found.surface)
    models = {document.surface.model: _model(path, document) for path, document in surfaces.items()}
    drafters = _drafters(surfaces, models, zip(drafted, drafts, strict=True), resumes)
    return PlanInputs(
        device=_device(verify, found),
        target=models[target],
        dtype=found.surface.dtype,
        verify=found.surface,
        overhead=overhead.at_temperature(temperature),
        host_times=(overhead,) if found.overhead else (),
        drafters=drafters,
        texts=texts_of(traces[0]),
        workload=traces[0].workload,
        temperature=temperature,
        footprints=footprints_of(models[target], models.values(), found.surface.dtype),
        readings=readings_of(surfaces[path].surface for path in readings),
        notes=(
            *_notes(surfaces, found),
            *note_of_rounds(overhead, temperature),
            *note_of_drafters(drafters, overhead),
            *note_of_reach(models[target], drafters),
        ),
    )


def _drafters(
    surfaces: Surfaces,
    models: Mapping[str, ModelIdentity],
    drafted: Iterable[tuple[AcceptanceTrace, Path]],
    resumes: Mapping[Path, Path],
) -> tuple[DrafterInputs, ...]:
    """Return each drafter of a trace with its surface, and that of verifying from its states where there is one."""
    return tuple(
        DrafterInputs(
            name=trace.drafter_name,
            model=models[trace.drafter],
            surface=surfaces[path].surface,
            trace=trace,
            resume=surfaces[resumes[path]].surface if path in resumes else None,
        )
        for trace, path in drafted
    )


def _document(kind: type[Document], path: Path) -> Document:
    name = "surface" if kind is SurfaceDocument else "trace"
    try:
        return from_json(kind, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"cannot read {path} ({reason}); write it with: spectune show {name} -o FILE") from error
    except SpectuneError as error:
        raise RequestError(
            f"{path} is no {name} of spectune: {error}; write it with: spectune show {name} -o FILE"
        ) from error


def _target(traces: Sequence[AcceptanceTrace], paths: Sequence[Path]) -> str:
    for trace, path in zip(traces, paths, strict=True):
        if trace.target != traces[0].target:
            raise RequestError(
                f"{path} is a trace along {trace.target}, {paths[0]} one along {traces[0].target}; plan one target"
            )
    return traces[0].target


def _of_model(surfaces: Surfaces, model: str, role: str, called: str) -> Path:
    found = [path for path, document in surfaces.items() if _is_of(document.surface, model, role)]
    if not found:
        raise RequestError(
            f"no file is a {role} surface of {called} ({model}); write one with: spectune show surface -o FILE"
        )
    if len(found) > 1:
        raise RequestError(f"{found[0]} and {found[1]} are both {role} surfaces of {called}; give one of them")
    return found[0]


def _resumes(surfaces: Surfaces, drafts: Sequence[Path]) -> dict[Path, Path]:
    found: dict[Path, Path] = {}
    for path in drafts:
        own = surfaces[path].surface
        if own.role == SELF and any(_is_of(each.surface, own.model, RESUME) for each in surfaces.values()):
            found[path] = _of_model(surfaces, own.model, RESUME, own.model)
    return found


def _draft_role(surfaces: Surfaces, model: str) -> str:
    """Return the role in which a drafter was timed: heads and block drafters have their own."""
    roles = {document.surface.role for document in surfaces.values() if document.surface.model == model}
    return next((role for role in DRAFT_ROLES if role in roles), DRAFT_ROLES[0])


def _is_of(surface: LatencySurface, model: str, role: str) -> bool:
    return (surface.model, surface.role) == (model, role)


def _require_used(surfaces: Surfaces, used: set[Path]) -> None:
    dtypes = {document.surface.dtype for document in surfaces.values()}
    if len(dtypes) > 1:
        raise RequestError(f"the surfaces are of {' and '.join(sorted(dtypes))}; give surfaces of one number format")
    for path, document in surfaces.items():
        if path not in used:
            surface = document.surface
            raise RequestError(
                f"{path} is a {surface.role} surface of {surface.model}, which no trace needs; leave it out, or add "
                "that drafter's trace"
            )


def _device(path: Path, document: SurfaceDocument) -> Device:
    if document.device is None:
        raise RequestError(f"{path} does not say which device it is of; write it from a store that knows the device")
    return document.device


def _model(path: Path, document: SurfaceDocument) -> ModelIdentity:
    if document.model is None:
        raise RequestError(f"{path} does not say which model it is of; write it from a store that knows the model")
    return document.model


def _notes(surfaces: Surfaces, verify: SurfaceDocument) -> tuple[str, ...]:
    notes = [
        f"{path.name} is {document.surface.origin} ({document.surface.regime}), not measured here"
        for path, document in surfaces.items()
        if document.surface.origin != "measured"
    ]
    return (*notes, *(() if verify.overhead else (UNKNOWN,)))


def write_table(path: Path, table: FrozenTable) -> None:
    """Write a table as JSON; raise PlanError where the file cannot be written."""
    try:
        path.write_text(to_json(table) + "\n", encoding="utf-8")
    except OSError as error:
        raise PlanError(f"cannot write the table {path} ({error}); name another file") from error


def read_table(path: Path) -> FrozenTable:
    """Return the table of a file; raise PlanError where it cannot be read or holds none."""
    try:
        return from_json(FrozenTable, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"cannot read the table {path} ({error}); make one: spectune train cacheback") from error
    except SpectuneError as error:
        raise PlanError(f"{path} holds no table of n-grams: {error}; make one: spectune train cacheback") from error
