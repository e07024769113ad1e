"""One open database: its transactions, and how long it is waited for.

A transaction that reads, or that writes under its own key, begins again after a server's restart: nothing is lost or
written twice. A connection lost during a commit leaves open whether it took place. So the transaction writes a key of
its own beside its rows, and first of all when it is repeated: if an earlier attempt was stored, or is just being
stored, the server refuses the key once that one has ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import local
from typing import Generic, TypeVar
from uuid import uuid4

from sqlalchemy import Engine, Executable, create_engine, delete, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError
from sqlalchemy.orm import Session

from ...errors import StoreAwayError, StoreError
from ..store import Store
from ..url import is_sqlite_memory, shown, sqlite_file
from .documents import rows_of
from .engines import (
    WRITES,
    one_line,
    one_line_errors,
    outlast_power_cuts,
    postgres_engine,
    shrink,
    sqlite_engine,
    use_write_ahead_log,
)
from .migrate import migrate, require_current
from .tables import Base, WriteTable, utc_ago

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

Result = TypeVar("Result")
PATIENCE_S = 30.0  # how long a server that does not answer is waited for
OPENING_PATIENCE_S = 10.0  # likewise, where it has not answered yet: it may be the wrong one
COMING_UP = ("the database system is", "refused", "No such file or directory")  # what a server says, or its socket
KEYS_LAST_S = 86_400.0  # no writer asks for its key a day later
LONG_TURN_S = 600.0  # how long a profile waits for others that write to its SQLite file: it would break off
Record = TypeVar("Record")


def patiently(attempt: Callable[[], Result], patience_s: float) -> Result:
    """Return an attempt's result, repeated while the database is away; StoreAwayError after `patience_s`."""
    deadline, pause_s = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return attempt()
        except StoreAwayError:
            if time.monotonic() + pause_s > deadline:
                raise
        time.sleep(pause_s * random.uniform(0.5, 1.0))  # not all clients at the same moment
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class KeptOnce(Generic[Result]):
    """One transaction under one key; it may be attempted again and is stored at most once."""

    def __init__(self, writing: Callable[[], AbstractContextManager[Session]], work: Callable[[Session], Result]):
        """Describe a transaction: `writing` opens it, `work` writes its rows and returns the result."""
        self._writing, self._work = writing, work
        self._row = {"key": uuid4().hex}
        self._results: list[Result] = []  # of attempts whose work was done, the last of which may have been kept
        self._is_first = True

    def attempt(self) -> Result:
        """Return the result of the attempt that was stored, now or earlier; StoreAwayError means another attempt."""
        with self._writing() as session:
            if self._was_kept(session):
                return self._results[-1]
            self._results.append(self._work(session))
        return self._results[-1]

    def _was_kept(self, session: Session) -> bool:
        is_first, self._is_first = self._is_first, False
        if is_first:
            session.execute(insert(WriteTable), self._row)
            return False
        try:
            with session.begin_nested():
                session.execute(insert(WriteTable), self._row)
        except IntegrityError:
            return True
        return False


class Database(Store):
    """One database with spectune's schema in it; safe to share between threads, closed once."""

    def __init__(self, url: URL, *, upgrade: bool = True, writes: bool = True) -> None:
        """Open a database; StoreError where it cannot be opened, or its schema is another one.

        `upgrade` creates or upgrades the schema; else this version's must be there. Without `writes` a read-only file
        will do.
        """
        if not upgrade:
            _require_file(url)
        self._url = url
        self._is_closed = False
        self.patience_s = PATIENCE_S  # a server that does not answer is waited for so long; may be set
        self._here = local()  # of each thread: the session of its open `transaction`
        self._reader, self._writer = _reader_and_writer(url, writes)
        try:
            patiently(self._prepare if upgrade else self._require_schema, self.patience_s)
            if upgrade and url.get_backend_name() == "sqlite":
                use_write_ahead_log(self._reader)
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        with one_line_errors(self._url):
            migrate(self._reader, self._writer, self.url)
        if self.is_server:
            with self._writing() as session:
                session.execute(delete(WriteTable).where(WriteTable.created < utc_ago(KEYS_LAST_S)))

    def _require_schema(self) -> None:
        with one_line_errors(self._url), self._reader.begin() as connection:
            require_current(connection, self.url)

    @property
    def is_server(self) -> bool:
        """Whether the database is reached through a connection that may break."""
        return self._url.get_backend_name() != "sqlite"

    @property
    def is_shared(self) -> bool:
        """Whether another process can open the same database."""
        return not is_sqlite_memory(self._url)

    @property
    def address(self) -> str:
        """Where the store lies, for another process of ours: with the password, so never to be shown or stored."""
        return self._url.render_as_string(hide_password=False)

    @property
    def url(self) -> str:
        return shown(self._url)

    def outlast_power_cuts(self) -> None:
        """Let every write be on the disk before it is acknowledged; servers see to that themselves."""
        if not self.is_server:
            outlast_power_cuts(self._reader)

    def give_back_space(self) -> None:
        """Let the file be as large as what is in it; servers see to that themselves."""
        if not self.is_server:
            shrink(self._reader)

    def close(self) -> None:
        self._is_closed = True
        self._reader.dispose()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a write transaction that this thread's reads and writes join: all are stored, or with an error none."""
        with self._writing() as session:
            outer, self._here.session = getattr(self._here, "session", None), session
            try:
                yield session
            finally:
                self._here.session = outer

    def _read(self, work: Callable[[Session], Result]) -> Result:
        """Return what one transaction reads; StoreAwayError where the server is away for `patience_s` seconds."""

        def once() -> Result:
            with self._reading() as session:
                return work(session)

        return once() if self._is_joined else patiently(once, self.patience_s)

    def _rows(self, record: type[Record], query: Executable) -> list[Record]:
        """Return what a query finds, each row as a record."""
        return self._read(lambda session: rows_of(session, record, query))

    def _write(self, work: Callable[[Session], Result]) -> Result:
        """Return the result of one write transaction, stored exactly once: on a server by a key.

        `work` makes its rows again when called again. StoreAwayError leaves open whether the rows are stored.
        """
        if self._is_joined or not self.is_server:
            with self._writing() as session:
                return work(session)
        return patiently(KeptOnce(self._writing, work).attempt, self.patience_s)

    def _write_in_turn(self, work: Callable[[Session], Result]) -> Result:
        """Write as `_write` does, but wait minutes for another long writer of an SQLite file."""
        if self._is_joined or self.is_server:
            return self._write(work)
        return patiently(lambda: self._write(work), LONG_TURN_S)

    @property
    def _is_joined(self) -> bool:
        return getattr(self._here, "session", None) is not None

    def _reading(self) -> AbstractContextManager[Session]:
        return self._session(self._reader)

    def _writing(self) -> AbstractContextManager[Session]:
        return self._session(self._writer)

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        if self._is_closed:
            raise StoreError(f"{self.url} is closed; open the store again")
        if (joined := getattr(self._here, "session", None)) is not None:
            with one_line_errors(self._url):
                yield joined
                joined.flush()  # what is wrong with a write shows where it was made
            return
        with one_line_errors(self._url), Session(engine) as session, session.begin():
            yield session


def insert_once(session: Session, row: Base) -> None:
    """Write a row now, unless another process has just written one of the same key: then that one stays."""
    with suppress(IntegrityError), session.begin_nested():
        session.add(row)


def _require_file(url: URL) -> None:
    file = sqlite_file(url)
    if is_sqlite_memory(url) or (file is not None and not file.exists()):
        raise StoreError(f"there is no store at {shown(url)}; name one with --store, or make one: spectune db upgrade")


def _reader_and_writer(url: URL, writes: bool) -> tuple[Engine, Engine]:
    engine = _engine(url, writes)
    writer = engine.execution_options(**{WRITES: True})
    if url.get_backend_name() == "postgresql":
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    return engine, writer


def _connect_once(engine: Engine, url: URL) -> None:
    """Connect, or raise StoreAwayError where the server may be about to start, and StoreError where it will not do."""
    try:
        with one_line_errors(url), engine.connect():
            return
    except StoreAwayError as error:
        if any(part in str(error) for part in COMING_UP):
            raise
        raise StoreError(str(error)) from error.__cause__


def _engine(url: URL, writes: bool) -> Engine:
    """Return an engine that has connected once, so that a wrong URL shows before anything else."""
    try:
        engine = _engine_of(url, writes)
        if engine.dialect.is_async:
            raise StoreError(f"{url.drivername!r} is an asynchronous driver; use {url.get_backend_name()}:// instead")
        patiently(lambda: _connect_once(engine, url), OPENING_PATIENCE_S)
        return engine
    except (NoSuchModuleError, ArgumentError):
        schemes = "a path, sqlite:///, postgresql+psycopg:// or another SQLAlchemy URL"
        raise StoreError(f"no database is known by {url.drivername!r} ({shown(url)}); use {schemes}") from None
    except ModuleNotFoundError as error:
        raise StoreError(f"{shown(url)} needs the Python package {error.name!r}; install it") from error
    except (TypeError, ValueError) as error:
        fault = one_line(str(error), url)
        raise StoreError(f"{shown(url)} has an option the driver refuses: {fault}; remove or correct it") from None


def _engine_of(url: URL, writes: bool) -> Engine:
    match url.get_backend_name():
        case "sqlite":
            return sqlite_engine(url, writes=writes)
        case "postgresql":
            return postgres_engine(url)
    return create_engine(url, pool_pre_ping=True)
