"""What is measured once per device and remembered in a folder of the user's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import platformdirs

from ..errors import DeviceError, SpectuneError
from .records.wire import from_json, to_json

CACHE_VARIABLE = "SPECTUNE_CACHE"
Record = TypeVar("Record")


def cache_folder() -> Path:
    """Return the folder of what is measured once: SPECTUNE_CACHE, else the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("spectune", appauthor=False))


def recalled(kind: type[Record], file: Path) -> Record | None:
    """Return the record of a file, None where it is absent or damaged: it is measured again then."""
    try:
        return from_json(kind, file.read_text())
    except (OSError, UnicodeDecodeError, SpectuneError):
        return None


def remember(record: object, file: Path) -> None:
    """Write a record in one step, so that no reader sees half of it; raise DeviceError where it fails."""
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(to_json(record))
        partial.replace(file)
    except OSError as error:
        raise DeviceError(f"cannot remember what was measured in {file} ({error}); set {CACHE_VARIABLE}") from error
