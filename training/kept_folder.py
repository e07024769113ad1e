"""The folder of a trained drafter: never another model's; lack of memory or disk is reported in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from safetensors import SafetensorError

from ..errors import TrainingError
from ..runtime.faults import is_out_of_memory, reason_of
from ..runtime.models.config_file import own_kind

PARTIAL = ".partial"  # folder inside the drafter's own that holds an unfinished run
MAKER = ".maker"  # file that says who writes models into a folder
LESS_TEXT = "lower --batch, --piece or --new-tokens, or choose another --device; what was written so far is kept"

Asked = TypeVar("Asked")
Told = TypeVar("Told")
More = ParamSpec("More")
Job = Callable[Concatenate[Asked, Path, More], Told]  # of what is asked and the drafter's folder


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


def tells_of_room(remedy: str) -> Callable[[Job[Asked, More, Told]], Job[Asked, More, Told]]:
    """Return a decorator: TrainingError where a job lacks memory (`remedy` says what to do) or disk space."""

    def telling(job: Job[Asked, More, Told]) -> Job[Asked, More, Told]:
        @wraps(job)
        def told(request: Asked, folder: Path, /, *more: More.args, **named: More.kwargs) -> Told:
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
