"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import RequestError


def require_writable(path: Path | None) -> None:
    """Raise RequestError where a file cannot be written, before the work for it begins."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise RequestError(f"cannot write {path}, which is a folder; name a file in it")
    if not folder.is_dir():
        raise RequestError(f"cannot write {path}, there is no folder {folder}; make it or choose another")
    if not os.access(folder, os.W_OK):
        raise RequestError(f"cannot write {path}, its folder may not be written; choose another")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole, so that no reader sees half of it; RequestError leaves what was there before."""
    require_writable(path)
    try:
        descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise RequestError(f"cannot write {path} ({error.strerror}); choose another folder") from error
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        raise RequestError(f"cannot write {path} ({error.strerror}); free some space or choose another") from error
    finally:
        draft.unlink(missing_ok=True)
