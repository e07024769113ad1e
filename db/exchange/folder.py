"""A store as a folder of plain JSON files, named for people: device_name=...,target=...,dtype=....json."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import SpectuneError, StoreError
from ...profiler.records.wire import from_json, to_json
from ..sources import content_hash
from .records import (
    KINDS,
    Shared,
    SharedDevice,
    SharedModel,
    SharedOverhead,
    SharedPairwise,
    SharedPlan,
    SharedSurface,
    SharedTrace,
)

LONGEST_VALUE = 40  # characters of one value in a name; a name stays under 255 bytes
LARGEST_BYTES = 2**30  # of one file
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One file of an export."""

    kind: str
    path: Path


def write_folder(items: Iterable[Shared], folder: Path) -> Iterator[ExportedFile]:
    """Write each record to its own file and yield it, or raise StoreError; an earlier export's files stay.

    Files appear whole. A name that is taken gets the record's hash at its end, so that two exports of one store into
    one folder write each file once.
    """
    names = _FileNames()
    for item in items:
        text = to_json(item) + "\n"
        stem = names.stem_of(item)
        yield ExportedFile(kind=item.kind, path=_write(folder / f"{item.kind}s", stem, text))


def read_folder(folder: Path) -> Iterator[Shared]:
    """Yield a folder's records, plans after their sources, else by age; StoreError names a file that is none."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is no folder; write one with: spectune db export FOLDER")
    found = sorted(folder.rglob("*.json"))
    if not found:
        raise StoreError(f"{folder} holds no .json files; write some with: spectune db export FOLDER")
    kinds = {path: _kind_of(path) for path in found}
    for kind in KINDS:
        paths = [path for path in found if kinds[path][0] == kind]
        for path in sorted(paths, key=lambda path: kinds[path][1]):
            yield _record(path)


def _write(folder: Path, stem: str, text: str) -> Path:
    path = folder / f"{stem}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            path = folder / f"{stem},hash={content_hash(text)[:16]}.json"
        part = path.with_name(f".{content_hash(path.name)[:16]}.part")
        with part.open("w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; choose a folder you may write") from error
    return path


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise StoreError(f"{path} is larger than {LARGEST_BYTES} bytes, which no record is; take it out")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is not UTF-8 text; take it out or export it again") from error


def _kind_of(path: Path) -> tuple[str, str]:
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON ({error}); take it out or export it again") from error
    kind = value.get("kind") if isinstance(value, dict) else None
    if kind not in KINDS:
        raise StoreError(f"{path} says it is a {kind!r}, not one of {', '.join(KINDS)}; take it out or export it again")
    if value.get("format", 1) != 1:
        raise StoreError(f"{path} has format {value['format']!r}, newer than this spectune's 1; update spectune")
    return kind, str(value.get("created", ""))


def _record(path: Path) -> Shared:
    text = _text(path)
    kind = KINDS[json.loads(text)["kind"]]
    try:
        record: Shared = from_json(kind, text)
    except SpectuneError as error:
        raise StoreError(f"{path} is no {kind.__name__}: {error}") from error
    return record


class _FileNames:
    def __init__(self) -> None:
        self._devices: dict[str, str] = {}
        self._models: dict[str, str] = {}
        self._taken: dict[str, set[str]] = {}

    def stem_of(self, item: Shared) -> str:
        """Return a name that no other file of this export has, whether or not the file system knows capitals."""
        stem = ",".join(f"{name}={safe(str(value))}" for name, value in self._parts(item).items() if value != "")
        taken = self._taken.setdefault(item.kind, set())
        if stem.lower() in taken:
            stem = f"{stem},hash={content_hash(to_json(item))[:16]}"
        taken.add(stem.lower())
        return stem

    def _parts(self, item: Shared) -> dict[str, Any]:
        match item:
            case SharedDevice():
                self._devices[item.device.fingerprint] = item.device.name
                return {"device_name": item.device.name, "fingerprint": item.device.fingerprint}
            case SharedModel():
                self._models[item.model.key] = item.model.name
                return {"model": item.model.name, "key": item.model.key}
            case SharedSurface():
                key = item.surface
                target = {"target" if key.role == "verify" else "drafter": self._model(key.model)}
                rest = {"role": key.role, "regime": key.regime, "attention": key.attention, "dtype": key.dtype}
                return {"device_name": self._device(key.device), **target, **rest}
            case SharedOverhead():
                time = item.overhead
                names = {"device_name": self._device(time.device), "target": self._model(time.target)}
                return {**names, "regime": time.regime, "dtype": time.dtype}
            case SharedTrace():
                names = {"target": self._model(item.trace.target), "drafter": item.trace.drafter_name}
                return {**names, "workload": item.trace.workload, "temperature": f"{item.trace.temperature:g}"}
            case SharedPairwise():
                return {"models": "+".join(item.pairwise.models)}
            case SharedPlan():
                setup = {"workload": item.workload, "temperature": f"{item.temperature:g}"}
                names = {"device_name": self._device(item.device), "target": self._model(item.target)}
                return {**names, **setup, "dtype": _dtype(item.plan)}

    def _device(self, fingerprint: str) -> str:
        prefix, _, last = fingerprint.rpartition(":")  # of a plan that is no more than a guess
        return f"{prefix}-{self._devices.get(last, last)}" if prefix else self._devices.get(last, last)

    def _model(self, key: str) -> str:
        return self._models.get(key, key)


def safe(value: str) -> str:
    """Return a value for a file's name: letters, digits, dot, minus and underscore, at most 40."""
    plain = unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode()
    return UNSAFE.sub("_", plain).strip("_.")[:LONGEST_VALUE] or content_hash(value)[:8]


def _dtype(plan: Any) -> str:  # Any: a JSON value
    found = plan.get("dtype", "") if isinstance(plan, dict) else ""
    return found if isinstance(found, str) else ""
