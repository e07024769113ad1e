"""The contract of stores, held by SQLite in a file, SQLite in memory and a real PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spectune.db import Store, open_store
from spectune.db.endpoint import ENDPOINTS
from spectune.db.sql.sql_store import SqlStore

from ..support.postgres_server import PostgresServer, postgres
from ..support.store_contract import StoreContract

__all__ = ["postgres"]


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an empty store once: copying it is faster than making another."""
    file = tmp_path_factory.mktemp("empty") / "store.db"
    open_store(str(file)).close()
    return file


def test_a_database_does_itself_whatever_a_store_promises() -> None:
    assert len(ENDPOINTS) > 30
    assert [name for name in ENDPOINTS if getattr(SqlStore, name) is getattr(Store, name)] == []


class TestSqliteFile(StoreContract):
    """A file, as one machine keeps it."""

    @pytest.fixture
    def store(self, empty_file: Path, tmp_path: Path) -> Iterator[Store]:
        with open_store(str(shutil.copy(empty_file, tmp_path))) as opened:
            yield opened


class TestSqliteMemory(StoreContract):
    """Memory of this process."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with open_store("sqlite://") as opened:
            yield opened


class TestPostgres(StoreContract):
    """A server, as a team keeps it."""

    @pytest.fixture
    def store(self, postgres: PostgresServer) -> Iterator[Store]:
        with open_store(postgres.new_database()) as opened:
            yield opened
