"""Where a client keeps what it holds of one service, and how files there are written: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_ident

from ..errors import StoreError
from ..profiler.remembered import CACHE_VARIABLE, cache_folder
from .remote_url import ServiceUrl

SERVICES = "services"


def service_folder(url: ServiceUrl) -> Path:
    """Return the folder of one service: of its URL, whatever the token."""
    return cache_folder() / SERVICES / url.folder_name


def made(folder: Path) -> Path:
    """Return a folder that is there, for this user alone; raise StoreError where it cannot be made."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder} ({error.strerror}); set {CACHE_VARIABLE}") from error
    return folder


def write_whole(file: Path, text: str) -> None:
    """Write a file in one step: no reader, and no crash, sees half of it; raise StoreError where it cannot."""
    partial = file.with_name(f"{file.name}.{os.getpid()}-{get_ident()}.partial")
    made(file.parent)
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except OSError as error:
        remove(partial)
        raise StoreError(f"cannot write {file} ({error.strerror}); free some space or set {CACHE_VARIABLE}") from error


def remove(file: Path) -> None:
    """Remove a file; one that is gone, or whose folder may not be written, stays as it is."""
    with suppress(OSError):
        file.unlink()


def files_by_age(folder: Path, suffix: str = "") -> Iterator[tuple[Path, os.stat_result]]:
    """Yield a folder's files and facts, last written first; without a suffix half-written ones, too."""
    found: list[tuple[Path, os.stat_result]] = []
    for file in folder.glob(f"*{suffix}"):
        try:
            found.append((file, file.stat()))
        except OSError:
            continue
    yield from sorted(found, key=lambda each: (each[1].st_mtime_ns, each[0].name), reverse=True)
