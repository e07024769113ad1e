"""One open database: its transactions, and every failure of it as one line without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from ..errors import StoreError
from .migrate import migrate
from .sqlite import WRITES, sqlite_engine, use_write_ahead_log
from .tables import Base
from .url import MASK, secrets_of, shown

ADVICE = (  # part of a driver's message -> what to do
    ("not a database", "restore the file from a copy or choose another path"),
    ("malformed", "restore the file from a copy or choose another path"),
    ("locked", "another program is writing for long; wait for it or stop it"),
    ("readonly", "change the permissions of the file and its folder"),
    ("disk is full", "free some space"),
    ("too long", "use a shorter name"),
    ("already exists", "the schema was changed by hand; choose another database"),
    ("no such table", "the schema was changed by hand; choose another database"),
)
ACCESS_ADVICE = "check the URL, and that the database runs and lets you in"
VALUE_ADVICE = "check the values to be stored"


class Database:
    """One database with spectune's schema in it; safe to share between threads, closed once."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._is_closed = False
        self._reader = _engine(url)
        self._writer = self._reader.execution_options(**{WRITES: True})
        try:
            with one_line_errors(url):
                migrate(self._reader, self._writer, self.url)
            if url.get_backend_name() == "sqlite":
                use_write_ahead_log(self._reader)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Where the store lies, for people: without the password."""
        return shown(self._url)

    def close(self) -> None:
        """Give up every connection; a second call does nothing."""
        self._is_closed = True
        self._reader.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        """Open a transaction that reads; everything in it is seen at one moment."""
        with self._session(self._reader) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """Open a transaction that writes: all of it is kept, or after an exception nothing."""
        with self._session(self._writer) as session:
            yield session

    @contextmanager
    def _session(self, engine: Engine) -> Iterator[Session]:
        if self._is_closed:
            raise StoreError(f"{self.url} is closed; open the store again")
        with one_line_errors(self._url), Session(engine) as session, session.begin():
            yield session


@contextmanager
def one_line_errors(url: URL) -> Iterator[None]:
    """Turn what the database raises into a StoreError of one line; a cause that quotes a password is dropped."""
    try:
        yield
    except SQLAlchemyError as error:
        is_silent = any(secret in str(error) for secret in secrets_of(url))
        raise StoreError(f"{shown(url)}: {_reason(error, url)}") from (None if is_silent else error)


def insert_once(session: Session, row: Base) -> None:
    """Write a row now, unless another process has just written one of the same key: then that one stays."""
    with suppress(IntegrityError), session.begin_nested():
        session.add(row)


def _reason(error: Exception, url: URL) -> str:
    cause = error.orig if isinstance(error, DBAPIError) else error
    line = _one_line(str(cause), url)
    otherwise = VALUE_ADVICE if isinstance(error, DataError | IntegrityError) else ACCESS_ADVICE
    advice = next((advice for part, advice in ADVICE if part in line), otherwise)
    return f"{line}; {advice}"


def _one_line(text: str, url: URL) -> str:
    line = " ".join(text.split())
    for secret in secrets_of(url):
        line = line.replace(secret, MASK)
    return line


def _engine(url: URL) -> Engine:
    """Return an engine that has connected once, so that whatever is wrong with the URL shows before anything else."""
    try:
        engine = sqlite_engine(url) if url.get_backend_name() == "sqlite" else create_engine(url)
        if engine.dialect.is_async:
            raise StoreError(f"{url.drivername!r} is an asynchronous driver; use {url.get_backend_name()}:// instead")
        with one_line_errors(url), engine.connect():
            return engine
    except (NoSuchModuleError, ArgumentError):
        schemes = "a path, sqlite:///, postgresql+psycopg:// or another SQLAlchemy URL"
        raise StoreError(f"no database is known by {url.drivername!r} ({shown(url)}); use {schemes}") from None
    except ModuleNotFoundError as error:
        raise StoreError(f"{shown(url)} needs the Python package {error.name!r}; install it") from error
    except (TypeError, ValueError) as error:
        fault = _one_line(str(error), url)
        raise StoreError(f"{shown(url)} has an option the driver refuses: {fault}; remove or correct it") from None
