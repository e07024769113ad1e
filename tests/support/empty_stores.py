"""Empty stores of every kind of database, as many as a test asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url

Open = Callable[[], SqlStore]


@pytest.fixture(params=["file", "postgres"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return what opens an empty store of a kind."""
    opened: list[SqlStore] = []

    def open_another() -> SqlStore:
        is_file = request.param == "file"
        file = str(tmp_path / f"{len(opened)}.db")
        opened.append(SqlStore(resolve_url(file if is_file else request.getfixturevalue("postgres").new_database())))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()
