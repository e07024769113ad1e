"""Measurements made elsewhere, read from a file; docs/reference/import-files.md describes what it may hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...db.rows import Records
from ...errors import RequestError, SpectuneError
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.document import SurfaceDocument, TraceDocument
from ...profiler.records.measurement import Measurement
from ...profiler.records.model import ModelIdentity
from ...profiler.records.surface import LatencySurface
from ...profiler.records.wire import from_json
from .csv_table import read_csv
from .told import ForeignModel, Given, imported_regime, told_once


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSurface:
    """Cells of one model in one role, as another program writes them."""

    role: str
    dtype: str
    cells: tuple[Measurement, ...]
    attention: str = ""
    model: ForeignModel | None = None  # None: --model says it


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignDocument:
    """What another program measured on one device."""

    surfaces: tuple[ForeignSurface, ...]
    device: Device | None = None  # None: --device says it
    regime: str | None = None  # None: --regime-name says it

    def __post_init__(self) -> None:
        if not self.surfaces:
            raise RequestError("surfaces: there are none; write one per model and role, or import nothing")


def read_json(text: str, beside: Path, given: Given) -> Records:
    """Return the records of a JSON document.

    Model folders are looked up from `beside`, the file's folder. `given` fills in what a foreign document leaves out;
    our own leave nothing out. RequestError where it is no JSON, or none of the known documents, or says too little or
    too much; SpectuneError where a record in it is wrong; its place in the document is named.
    """
    found = _keys(text)
    if "surfaces" in found:
        return _foreign_records(from_json(ForeignDocument, text), beside, given)
    read = next((reader for key, reader in OWN.items() if key in found), None)
    if read is None:
        raise RequestError(
            f"the document has the keys {', '.join(sorted(found)) or '(none)'}; "
            'it needs "surfaces", or must be written by: spectune show surface -o FILE, or show trace -o FILE'
        )
    if given.options:
        raise RequestError(f"spectune wrote this document, and it says everything; leave out {given.options[0]}")
    return read(text)


def _keys(text: str) -> set[str]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"line {error.lineno}, column {error.colno}: {error.msg}; mend it") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists without end
        raise RequestError(f"the document cannot be read: {error}; mend it") from error
    if not isinstance(document, dict):
        raise RequestError(f"the document is a {type(document).__name__}; it must be an object, {{...}}")
    return set(document)


def _surface_document(text: str) -> Records:
    document = from_json(SurfaceDocument, text)
    return Records(
        devices=() if document.device is None else (document.device,),
        models=() if document.model is None else (document.model,),
        surfaces=(document.surface,),
        overheads=() if document.overhead is None else (document.overhead,),
    )


def _trace_document(text: str) -> Records:
    document = from_json(TraceDocument, text)
    models = (model for model in (document.target, document.drafter) if model is not None)
    return Records(models=tuple(models), traces=(document.trace,))


OWN: Mapping[str, Callable[[str], Records]] = {  # a key that only this document has -> its reader
    "surface": _surface_document,
    "trace": _trace_document,
    "measurements": lambda text: Records(surfaces=(from_json(LatencySurface, text),)),  # without its identities,
    "prompts": lambda text: Records(traces=(from_json(AcceptanceTrace, text),)),  # as spectune 0.1 wrote them
}


def _foreign_records(document: ForeignDocument, beside: Path, given: Given) -> Records:
    device = told_once("device", document.device, given.device)
    name = given.regime_name or document.regime
    if name is None:
        raise RequestError("regime: not there; say in one word how this was measured, or give --regime-name")
    models, surfaces = [], []
    for place, told in enumerate(document.surfaces):
        with _place(f"surfaces.{place}"):
            named = None if told.model is None else told.model.identity(beside)
            models.append(told_once("model", named, given.model))
            surfaces.append(_surface(told, device, models[-1], imported_regime(name)))
    _require_distinct(surfaces)
    distinct = {model.key: model for model in models}
    return Records(devices=(device,), models=tuple(distinct.values()), surfaces=tuple(surfaces))


@contextmanager
def _place(name: str) -> Iterator[None]:
    try:
        yield
    except SpectuneError as error:
        raise RequestError(f"{name}: {error}") from error


def _surface(told: ForeignSurface, device: Device, model: ModelIdentity, regime: str) -> LatencySurface:
    return LatencySurface(
        device=device.fingerprint,
        model=model.key,
        role=told.role,
        regime=regime,
        dtype=told.dtype,
        attention=told.attention,
        measurements=told.cells,
    )


def _require_distinct(surfaces: Sequence[LatencySurface]) -> None:
    keys = [(surface.model, surface.role, surface.dtype, surface.attention) for surface in surfaces]
    for place, key in enumerate(keys):
        if key in keys[:place]:
            raise RequestError(
                f"surfaces.{place}: the same model, role, dtype and attention as surfaces.{keys.index(key)}; join them"
            )


Format = Literal["csv", "json"]

READERS: Mapping[Format, Callable[[str, Path, Given], Records]] = {"csv": read_csv, "json": read_json}


def format_of(path: Path) -> Format:
    """Return the format that a file's suffix names; raise RequestError where it names none."""
    for known in READERS:
        if path.suffix.lower() == f".{known}":
            return known
    raise RequestError(f"the name of {path} does not end in .csv or .json; say which it is with --format")


def read_import(path: Path, given: Given, file_format: Format | None = None) -> Records:
    """Return a file's records, each checked; `given` fills in what it leaves out, a suffix names the format.

    RequestError where the file cannot be read, or a record is wrong: line and column, or place in the JSON, are named.
    """
    reader = READERS[file_format or format_of(path)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise RequestError(f"cannot read {path} ({reason}); give a .csv or .json file") from error
    try:
        return reader(text, path.absolute().parent, given)
    except SpectuneError as error:
        raise RequestError(f"{path}, {error}") from error
