"""An empty store in a file: its schema is made once, since that takes longer than most tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url


def fresh_store(folder: Path, name: str = "store.db") -> SqlStore:
    """Open a store with nothing in it."""
    file = folder / name
    file.write_bytes(_empty())
    return SqlStore(resolve_url(str(file)))


@cache
def _empty() -> bytes:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        SqlStore(resolve_url(str(file))).close()
        return file.read_bytes()
