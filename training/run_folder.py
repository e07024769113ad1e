"""The unfinished part of a training run on disk: the data written for it, and its progress.

What a target writes takes longest and depends on few settings. So a training may restart, or have other settings, on
the data of an earlier one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from ..errors import TrainingError
from ..profiler.records.model import ModelIdentity
from ..runtime.batch.faults import is_out_of_memory, reason_of
from ..runtime.batch.sequence import Request
from ..runtime.models.config_file import own_kind

PLACES = ("data", "files", "drafter", "device", "cache", "hours")  # fields of a request that resuming may change
RUN = "run.pt"  # how far the training has come
SOURCES, REQUEST = "sources.json", "request.json"  # what was written follows from, and what the training was asked for

Progress = Callable[[str, float], None]
Sources = Mapping[str, Any]  # by name, for people: JSON


class TrainingRequest(Protocol):
    """A dataclass that says what to train."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # what makes it one; Any: typeshed's own type of it


def run_folder(
    request: TrainingRequest, identity: ModelIdentity, folder: Path, sources: Sources, *, fresh: bool
) -> Path:
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


def save_whole(path: Path, array: NDArray[Any]) -> None:
    """Write an array under its name once it is whole."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    with unfinished.open("wb") as file:
        np.save(file, array)
    unfinished.replace(path)


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


PARTIAL = ".partial"  # folder inside the drafter's own that holds an unfinished run
MAKER = ".maker"  # file that says who writes models into a folder
LESS_TEXT = "lower --batch, --piece or --new-tokens, or choose another --device; what was written so far is kept"

Wanted = TypeVar("Wanted")
Told = TypeVar("Told")
More = ParamSpec("More")
Job = Callable[Concatenate[Wanted, Path, More], Told]  # of what is asked and the drafter's folder


def require_own(folder: Path, *models: Path) -> None:
    """Raise TrainingError where saving a drafter would overwrite one of `models`, or any not trained here."""
    if folder.resolve() in [model.resolve() for model in models]:
        raise TrainingError(f"{folder} holds a model that the drafter is trained with; name another folder with -o")
    is_taken = (folder / "config.json").exists() or any(folder.glob("*.safetensors"))
    if is_taken and not _is_own(folder):
        raise TrainingError(f"{folder} holds a model that was not trained here; name another folder with -o")


def claim(folder: Path, maker: str) -> None:
    """Make or reuse a folder in which only this maker writes, dot files apart; TrainingError for other files."""
    note = folder / MAKER
    is_own = note.is_file() and note.read_text().strip() == maker
    if not is_own and folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise TrainingError(
            f"{folder} holds files that {maker} might write over, and no note that it wrote them; name a new folder "
            f"with -o, or write {maker!r} into {note} if they are its own"
        )
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(maker + "\n")


def tells_of_room(remedy: str) -> Callable[[Job[Wanted, More, Told]], Job[Wanted, More, Told]]:
    """Return a decorator: TrainingError where a job lacks memory (`remedy` says what to do) or disk space."""

    def telling(job: Job[Wanted, More, Told]) -> Job[Wanted, More, Told]:
        @wraps(job)
        def told(request: Wanted, folder: Path, /, *more: More.args, **named: More.kwargs) -> Told:
            try:
                return job(request, folder, *more, **named)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise TrainingError(f"memory has no room for this training ({reason_of(error)}); {remedy}") from error
            except (OSError, SafetensorError) as error:
                raise TrainingError(
                    f"cannot train into {folder} ({error}); free space there or name another folder with -o"
                ) from error

        return told

    return telling


def _is_own(folder: Path) -> bool:
    if (folder / PARTIAL).is_dir() or own_kind(folder) is not None:
        return True
    try:
        card = json.loads((folder / "card.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(card, dict) and "target_hash" in card
