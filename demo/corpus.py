"""The demo's text: Python's own standard library, which every machine has.

A file is held out when a hash of its path says so, so the split is the same for every
Python version and nobody's prompts come from a file the models were trained on.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

HELD_OUT_SHARE = 0.05

# Generated tables and deliberately broken sources: long, repetitive, nobody writes them.
LEFT_OUT = ("encodings", "pydoc_data", "site-packages", "lib2to3/tests/data", "__pycache__")
LONGEST_FILE_BYTES = 400_000


def training_texts() -> list[str]:
    """Return the sources the demo models are trained on, in path order."""
    return [text for path, text in _sources() if not is_held_out(path)]


def held_out_texts() -> list[str]:
    """Return the sources no demo model has seen, in path order."""
    return [text for path, text in _sources() if is_held_out(path)]


def is_held_out(relative_path: str) -> bool:
    """Return whether a source, named relative to the library, is kept for evaluation."""
    digest = hashlib.sha256(relative_path.encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def _sources() -> Iterator[tuple[str, str]]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if any(part in name for part in LEFT_OUT) or path.stat().st_size > LONGEST_FILE_BYTES:
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # test data in another encoding
