"""Where Optuna keeps a search's trials: in memory, or in a storage that processes and later searches share."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from ..db.sql.engines import BUSY_TIMEOUT_S, prepare_file
from ..db.url import resolve_url, shown, sqlite_file
from ..errors import StoreError
from ..planner.search.studies import sampler_of, studies_in_memory

if TYPE_CHECKING:
    from sqlite3 import Connection

ATTEMPTS = 20  # to make the tables of a new storage, while other processes try the same
FAILURES = (optuna.exceptions.OptunaError, SQLAlchemyError, ImportError, OSError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudies:
    """Open studies by name; each process opens the storage, a database URL or a journal file, for itself.

    A fresh study draws by its name and `seed`; a continued one also by its length, so that nothing is tried twice.
    """

    storage_url: str | None = None
    seed: int = 0

    def __call__(self, name: str) -> optuna.Study:
        """Return the maximising study of a name, with its earlier trials; StoreError for an unusable storage."""
        if self.storage_url is None:
            return studies_in_memory(self.seed)(name)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = _stored(self.storage_url, name)
        tried = len(study.get_trials(deepcopy=False))
        study.sampler = sampler_of(f"{name} behind {tried}" if tried else name, self.seed)
        return study


def _stored(place: str, name: str) -> optuna.Study:
    try:
        return optuna.create_study(storage=_storage(place), study_name=name, direction="maximize", load_if_exists=True)
    except FAILURES as error:
        raise StoreError(f"cannot keep trials in {_named(place)}: {_first_line(error)}; choose another") from error


@lru_cache(maxsize=4)
def _storage(place: str) -> BaseStorage:
    """Return this process's storage: opening one takes far longer than a trial. StoreError for an unusable place."""
    if "://" not in place:
        return _journal(Path(place))
    url = resolve_url(place)
    return _sqlite(url) if url.get_backend_name() == "sqlite" else RDBStorage(url.render_as_string(hide_password=False))


def _journal(path: Path) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if path.suffix in (".db", ".sqlite", ".sqlite3"):
        raise StoreError(f"{path} looks like an SQLite file; write sqlite:///{path}, or name a journal file")
    return JournalStorage(JournalFileBackend(str(path.absolute())))


def _sqlite(url: URL) -> BaseStorage:
    if (file := sqlite_file(url)) is not None:
        prepare_file(file)
        with closing(sqlite3.connect(file, timeout=BUSY_TIMEOUT_S)) as connection:
            connection.execute("PRAGMA journal_mode=WAL").close()  # the file remembers it
    options = {"connect_args": {"timeout": BUSY_TIMEOUT_S}}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            storage = RDBStorage(str(url), engine_kwargs=dict(options))
            break
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError):  # another process has just made a table
            if attempt == ATTEMPTS:
                raise
            time.sleep(0.05 * random.random() * attempt)
    event.listen(storage.engine, "connect", _write_fast)
    return storage


def _write_fast(connection: Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous=NORMAL").close()  # a killed process loses nothing beside a write-ahead log


def _named(place: str) -> str:
    return shown(resolve_url(place)) if "://" in place else place


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
