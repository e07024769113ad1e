"""Foreign measurements as a table: one timed call per line; lines of one shape are its repeats."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NoReturn

from ...db.rows import Records
from ...errors import RequestError, SpectuneError
from ...profiler.protocols import SurfaceKey
from ...profiler.records.device import Device
from ...profiler.records.measurement import Measurement
from ...profiler.records.model import ModelIdentity
from ...profiler.records.role import require_role
from ...profiler.records.surface import LatencySurface
from .told import ForeignModel, Given, imported_regime, record_of_texts, told_once

Shape = tuple[int, int, int]  # (batch, context_tokens, tokens)
Facts = tuple[tuple[str, str], ...]  # (field, text) of a device or a model

DEVICE = "device."
MODEL = "model."
NEEDED = ("role", "dtype", "batch", "context_tokens", "tokens", "ms")
ALLOWED = (
    *NEEDED,
    *("failure", "attention", "regime"),
    *(f"{DEVICE}{field.name}" for field in fields(Device) if not str(field.type).startswith("tuple")),
    *(f"{MODEL}{field.name}" for field in fields(ForeignModel)),
)
MOST = 10**9  # tokens of a shape; more is a slip of the pen


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRow:
    """One line of the table; a column left empty is not among its texts."""

    line: int
    texts: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return the text of a column that must not be empty."""
        return self.texts.get(column) or self.refuse(column, "nothing there", "fill it in")

    def count(self, column: str, least: int) -> int:
        """Return the whole number in a column."""
        text = self.text(column)
        is_number = text.isascii() and text.isdigit() and len(text) < 20
        if not is_number or not least <= int(text) <= MOST:
            self.refuse(column, repr(text), f"write a whole number of at least {least}")
        return int(text)

    def ms(self) -> float:
        """Return the time in column ms."""
        text = self.text("ms")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            self.refuse("ms", repr(text), "write positive milliseconds such as 3.25")
        return value

    def facts(self, prefix: str) -> Facts:
        """Return the texts of the columns that start with a prefix, named without it."""
        return tuple((name.removeprefix(prefix), text) for name, text in self.texts.items() if name.startswith(prefix))

    def refuse(self, column: str, seen: str, advice: str) -> NoReturn:
        """Raise RequestError about the text of a column."""
        raise RequestError(f"line {self.line}, column {column}: {seen}; {advice}")


def read_csv(text: str, beside: Path, given: Given) -> Records:
    """Return the records of a table of measurements; its first line names the columns.

    Model folders are found from `beside`, the file's folder; `given` fills in what no column says. RequestError names
    line and column of a wrong value.
    """
    names = _Names(beside, given)
    surfaces: dict[SurfaceKey, dict[Shape, list[CsvRow]]] = {}
    for row in _rows(text):
        shape = (row.count("batch", 1), row.count("context_tokens", 0), row.count("tokens", 1))
        surfaces.setdefault(names.surface_key(row), {}).setdefault(shape, []).append(row)
    if not surfaces:
        raise RequestError("line 2: the table holds no measurement; write one per line below the columns' names")
    return Records(
        devices=names.devices,
        models=names.models,
        surfaces=tuple(_surface(key, cells) for key, cells in surfaces.items()),
    )


class _Names:
    def __init__(self, beside: Path, given: Given) -> None:
        self._beside = beside
        self._given = given
        self._devices: dict[Facts, Device] = {}
        self._models: dict[Facts, ModelIdentity] = {}

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple({device.fingerprint: device for device in self._devices.values()}.values())

    @property
    def models(self) -> tuple[ModelIdentity, ...]:
        return tuple({model.key: model for model in self._models.values()}.values())

    def surface_key(self, row: CsvRow) -> SurfaceKey:
        name = self._given.regime_name or row.texts.get("regime")
        if name is None:
            row.refuse("regime", "no name for how this was measured", "add the column or give --regime-name")
        with _said_of(f"line {row.line}, column role: "):
            require_role(row.text("role"))
        with _said_of(f"line {row.line}, column regime: "):
            regime = imported_regime(name)
        return SurfaceKey(
            device=self._device(row).fingerprint,
            model=self._model(row).key,
            role=row.text("role"),
            regime=regime,
            dtype=row.text("dtype"),
            attention=row.texts.get("attention", ""),
        )

    def _device(self, row: CsvRow) -> Device:
        facts = row.facts(DEVICE)
        if facts not in self._devices:
            with _said_of(f"line {row.line}, "):
                self._devices[facts] = told_once("device", _device_of(facts), self._given.device)
        return self._devices[facts]

    def _model(self, row: CsvRow) -> ModelIdentity:
        facts = row.facts(MODEL)
        if facts not in self._models:
            with _said_of(f"line {row.line}, "):
                self._models[facts] = told_once("model", _model_of(facts, self._beside), self._given.model)
        return self._models[facts]


@contextmanager
def _said_of(place: str) -> Iterator[None]:
    try:
        yield
    except SpectuneError as error:
        raise RequestError(f"{place}{error}") from error


def _device_of(facts: Facts) -> Device | None:
    return record_of_texts(Device, {"index": "0"} | dict(facts), DEVICE) if facts else None


def _model_of(facts: Facts, beside: Path) -> ModelIdentity | None:
    if not facts:
        return None
    named = record_of_texts(ForeignModel, dict(facts), MODEL)
    with _said_of(f"columns {MODEL}*: "):
        return named.identity(beside)


def _rows(text: str) -> Iterator[CsvRow]:
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [name.strip() for name in next(lines, [])]
        _check_columns(columns)
        for values in lines:
            if any(value.strip() for value in values):
                yield _row(lines.line_num, columns, values)
    except csv.Error as error:
        raise RequestError(f"line {lines.line_num}: {error}; mend its quotes") from error


def _check_columns(columns: Sequence[str]) -> None:
    unknown = [name for name in columns if name not in ALLOWED]
    missing = [name for name in NEEDED if name not in columns]
    twice = [name for name in columns if columns.count(name) > 1]
    if unknown:
        raise RequestError(
            f"line 1: there is no column {unknown[0]!r}; separated by commas there may be: {_listed(ALLOWED)}"
        )
    if missing:
        raise RequestError(f"line 1: column {missing[0]} is missing; a table needs {_listed(NEEDED)}")
    if twice:
        raise RequestError(f"line 1: column {twice[0]} occurs twice; keep one of them")


def _row(line: int, columns: Sequence[str], values: Sequence[str]) -> CsvRow:
    if len(values) != len(columns):
        raise RequestError(f"line {line}: {len(values)} values for {len(columns)} columns; write one per column")
    texts = {name: value.strip() for name, value in zip(columns, values, strict=True)}
    return CsvRow(line=line, texts={name: value for name, value in texts.items() if value})


def _surface(key: SurfaceKey, cells: Mapping[Shape, Sequence[CsvRow]]) -> LatencySurface:
    return LatencySurface(
        device=key.device,
        model=key.model,
        role=key.role,
        regime=key.regime,
        dtype=key.dtype,
        attention=key.attention,
        measurements=tuple(_cell(shape, rows) for shape, rows in cells.items()),
    )


def _cell(shape: Shape, rows: Sequence[CsvRow]) -> Measurement:
    batch, context_tokens, tokens = shape
    failed = next((row for row in rows if "failure" in row.texts), None)
    if failed is None:
        repeats_ms = tuple(row.ms() for row in rows)
        return Measurement(batch=batch, context_tokens=context_tokens, tokens=tokens, repeats_ms=repeats_ms)
    reason = failed.text("failure")
    if len(rows) > 1 or "ms" in failed.texts:
        failed.refuse(
            "failure", repr(reason), "a shape that failed has one line and no ms; keep its times or its failure"
        )
    return Measurement(batch=batch, context_tokens=context_tokens, tokens=tokens, failure=reason)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
