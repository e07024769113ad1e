"""A store in a file behind a real planner service on this machine."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import uvicorn
from sqlalchemy import text

from spectune.db.sql.service_tables import Base
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.service.app import create_app
from spectune.service.server import BoundedConnection, HttpServer
from spectune.service.settings import ServiceSettings

WAIT_S = 20.0
TICK_S = 0.005


@dataclass(frozen=True, kw_only=True)
class ServedStore:
    url: str
    behind: SqlStore  # the same store, past the service

    def empty(self) -> None:
        """Take every row out of a PostgreSQL, past its locks, so that the next test finds it as new."""
        names = ", ".join(name for name in Base.metadata.tables)
        with self.behind._writing() as session:
            session.execute(text("SET LOCAL session_replication_role = replica"))  # no trigger is called
            session.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))


class PromptServer(HttpServer):
    """Looks often whether it is told to end: otherwise every test waits for that."""

    async def main_loop(self) -> None:
        """Run until it is told to end."""
        while not await self.on_tick(0):
            await asyncio.sleep(TICK_S)


@contextmanager
def served_store(
    folder: Path, settings: ServiceSettings | None = None, url: str | None = None
) -> Iterator[ServedStore]:
    """Serve a store for one block, to whoever asks from this machine: a file in a folder, or what a URL names."""
    allowed = settings or ServiceSettings(auth="off", rate_per_s=0.0, workers=0)
    file = folder / "served.db"
    if url is None and not file.exists():
        file.write_bytes(empty_store())
    with SqlStore(resolve_url(url or str(file))) as behind, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = create_app(behind, allowed)
        config = uvicorn.Config(
            app, http=BoundedConnection, log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        server = PromptServer(config, app.state.service.stop_streams)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            _wait_for(server)
            yield ServedStore(url=f"http://127.0.0.1:{listener.getsockname()[1]}", behind=behind)
        finally:
            server.should_exit = True
            thread.join(WAIT_S)


@cache
def empty_store() -> bytes:
    """Return the file of a store with nothing in it: making its schema takes longer than a test."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        SqlStore(resolve_url(str(file))).close()
        return file.read_bytes()


def _wait_for(server: uvicorn.Server) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not server.started:
        assert time.monotonic() < deadline_s, "the service did not start"
        time.sleep(0.005)
