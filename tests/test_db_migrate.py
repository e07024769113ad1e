"""The schema: one line of versions, equal to the models, upgraded whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect

from spectune.db import open_store
from spectune.db.migrate import HEAD, MIGRATIONS, VERSION_TABLE, migrate, migration_config, stored_versions
from spectune.db.sqlite import sqlite_engine
from spectune.db.tables import TABLE_PREFIX, Base
from spectune.db.url import resolve_url
from spectune.errors import StoreError


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = sqlite_engine(resolve_url("sqlite://"))
    yield opened
    opened.dispose()


def tables_of(file: Path) -> set[str]:
    with sqlite3.connect(file) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return names


def set_version(file: Path, version: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (version,))
    connection.close()


def differences(connection: Connection) -> list[object]:
    options = {"version_table": VERSION_TABLE, "compare_server_default": True}
    context = MigrationContext.configure(connection, opts=options)
    return list(compare_metadata(context, Base.metadata))


def test_the_migrations_have_a_single_head_and_it_is_the_one_expected() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_heads() == [HEAD]


def test_the_migrated_schema_equals_the_models(engine: Engine) -> None:
    migrate(engine, engine, "memory")
    with engine.connect() as connection:
        assert differences(connection) == []


def test_a_missing_index_would_be_seen_as_a_difference(engine: Engine) -> None:
    migrate(engine, engine, "memory")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_spectune_trace")
        assert len(differences(connection)) == 1


def test_a_downgrade_leaves_only_the_version_table(engine: Engine) -> None:
    migrate(engine, engine, "memory")
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "base")
        assert inspect(connection).get_table_names() == [VERSION_TABLE]


def test_a_downgraded_database_is_upgraded_again(engine: Engine) -> None:
    migrate(engine, engine, "memory")
    with engine.begin() as connection:
        command.downgrade(migration_config(connection), "base")
    migrate(engine, engine, "memory")
    with engine.connect() as connection:
        assert stored_versions(connection) == (HEAD,)
        assert differences(connection) == []


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    open_store(str(file)).close()
    set_version(file, "9999")
    before = file.read_bytes()
    with pytest.raises(StoreError, match=r"schema 9999, newer than this spectune's 0001; update spectune"):
        open_store(str(file))
    assert file.read_bytes() == before


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE spectune_validation (foreign_program INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match="already exists; the schema was changed by hand"):
        open_store(str(file))
    assert tables_of(file) == {"spectune_validation"}


def test_every_table_is_marked_as_ours() -> None:
    assert all(name.startswith(TABLE_PREFIX) for name in Base.metadata.tables)


@pytest.mark.parametrize("optuna_first", [True, False])
def test_optuna_may_keep_its_studies_in_the_same_database(tmp_path: Path, optuna_first: bool) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    steps = [lambda: optuna.storages.RDBStorage(url).remove_session(), lambda: open_store(url).close()]
    for step in steps if optuna_first else reversed(steps):
        step()
    study = optuna.create_study(storage=optuna.storages.RDBStorage(url), study_name="trees")
    study.optimize(lambda trial: trial.suggest_float("threshold", 0.0, 1.0), n_trials=2)
    with open_store(url) as store:
        assert store.plans() == []
    assert len(optuna.load_study(study_name="trees", storage=url).trials) == 2
    assert {"trials", "alembic_version", "spectune_plan", "spectune_version"} <= tables_of(tmp_path / "store.db")
