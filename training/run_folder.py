"""The unfinished part of a training run on disk: the data written for it, and its progress.

What a target writes takes longest and depends on few settings. So a training may restart, or have other settings, on
the data of an earlier one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ..errors import TrainingError
from ..profiler.records.model import ModelIdentity
from ..runtime.requests import Request
from .kept_folder import PARTIAL, require_own

PLACES = ("data", "files", "drafter", "device")  # fields of a request: where what the sources tell lies, and it runs
RUN = "run.pt"  # how far the training has come
SOURCES, REQUEST = "sources.json", "request.json"  # what was written follows from, and what the training was asked for

Progress = Callable[[str, float], None]
Sources = Mapping[str, Any]  # by name, for people: JSON


class Asked(Protocol):
    """A dataclass that says what to train."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # what makes it one; Any: typeshed's own type of it


def run_folder(request: Asked, identity: ModelIdentity, folder: Path, sources: Sources, *, fresh: bool) -> Path:
    """Return the folder of the unfinished run, whose data depends on `sources`.

    The same request resumes its training; `fresh` drops that, and any data from other sources. TrainingError where the
    folder holds another unfinished run, or a model that was not trained here.
    """
    require_own(folder, Path(identity.location))
    partial = folder / PARTIAL
    asked = _without_places(_plain({**asdict(request), "target": identity.weights_hash}))
    if fresh:
        _forget(partial, sources)
    elif partial.is_dir() and any(partial.iterdir()):
        _require_sources(folder, sources)
        if (partial / RUN).exists() and _without_places(_noted(partial / REQUEST)) != asked:
            raise TrainingError(
                f"{folder} holds another unfinished training; finish it, or forget it with --fresh, which keeps the "
                "texts or labels that it learns from"
            )
    partial.mkdir(parents=True, exist_ok=True)
    (partial / SOURCES).write_text(json.dumps(sources, sort_keys=True))
    (partial / REQUEST).write_text(json.dumps(asked, sort_keys=True))
    return partial


def digest_of(requests: Iterable[Request]) -> str:
    """Return a hash of requests: tokens, images, lengths and draws."""
    digest = sha256()
    for one in requests:
        images, ends = [image.digest for image in one.images], sorted(one.stop)
        digest.update(repr((one.prompt, one.max_new_tokens, one.temperature, one.seed, ends, images)).encode())
    return digest.hexdigest()


def _forget(partial: Path, sources: Sources) -> None:
    """Remove an unfinished training, and data from other sources."""
    (partial / RUN).unlink(missing_ok=True)
    known = _noted(partial / SOURCES)
    if partial.exists() and (not known or _changed(known, sources)):
        shutil.rmtree(partial)


def _require_sources(folder: Path, sources: Sources) -> None:
    """Raise TrainingError unless a folder's unfinished run has these sources."""
    known = _noted(folder / PARTIAL / SOURCES)
    if not known:
        raise TrainingError(f"{folder} holds an unfinished run that an older version began; forget it with --fresh")
    changed = _changed(known, sources)
    if changed:
        raise TrainingError(
            f"{folder} holds an unfinished run that began with other {', '.join(changed)}; put back what it began "
            "with, or forget it with --fresh"
        )


def _changed(known: Mapping[str, Any], sources: Sources) -> list[str]:
    """Return the names of sources that differ from a note; further names in older notes are ignored."""
    return sorted(name for name, own in _plain(sources).items() if known.get(name) != own)


def _without_places(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name not in PLACES}


def _noted(note: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(note.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _plain(told: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(told, default=str))
    return plain
