"""The schema: one line of versions, equal to the models, upgraded whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect

from spectune.db import open_store
from spectune.db.sql.engines import sqlite_engine
from spectune.db.sql.migrate import HEAD, MIGRATIONS, VERSION_TABLE, migrate, migration_config, stored_versions
from spectune.db.sql.service_tables import Base
from spectune.db.sql.tables import TABLE_PREFIX
from spectune.db.url import resolve_url
from spectune.errors import StoreError
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement

from ...support.sqlite_schema import statements_of


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


def read(file: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(file) as connection:
        rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def store_of_schema_1(file: Path) -> None:
    """Write a store as the first version of spectune left it: two surfaces, three measurements."""
    engine = sqlite_engine(resolve_url(str(file)))
    with engine.execution_options(spectune_writes=True).begin() as connection:
        command.upgrade(migration_config(connection), "0001")
        for number, regime in ((1, "eager"), (2, "compiled")):
            surface = f"{number}, 'device', 'model', 'verify', '{regime}', 'float32', '2025'"
            connection.exec_driver_sql(f"INSERT INTO spectune_surface VALUES ({surface})")
        for surface_id, tokens, ms in ((1, 1, 1.5), (1, 2, 2.5), (2, 1, 0.5)):
            document = f'{{"batch":1,"context_tokens":0,"tokens":{tokens},"repeats_ms":[{ms}]}}'
            values = (surface_id, 1, 0, tokens, document, "2025")
            columns = "surface_id, batch, context_tokens, tokens, document, created"
            statement = f"INSERT INTO spectune_measurement ({columns}) VALUES (?, ?, ?, ?, ?, ?)"
            connection.exec_driver_sql(statement, values)
    engine.dispose()


def downgrade(file: Path, version: str) -> None:
    engine = sqlite_engine(resolve_url(str(file)))
    with engine.execution_options(spectune_writes=True).begin() as connection:
        command.downgrade(migration_config(connection), version)
    engine.dispose()


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
    with pytest.raises(StoreError, match=rf"schema 9999, newer than this spectune's {HEAD}; update spectune"):
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


def test_an_upgrade_keeps_what_the_first_version_measured(tmp_path: Path) -> None:
    store_of_schema_1(tmp_path / "store.db")
    with open_store(str(tmp_path / "store.db")) as store:
        eager, compiled = store.surfaces()
    assert [cell.repeats_ms for cell in eager.measurements] == [(1.5,), (2.5,)]
    assert (compiled.regime, compiled.latency(1, 0, 1).ms) == ("compiled", 0.5)


def test_a_surface_of_the_first_version_has_an_unknown_attention_kernel(tmp_path: Path) -> None:
    store_of_schema_1(tmp_path / "store.db")
    with open_store(str(tmp_path / "store.db")) as store:
        assert [surface.attention for surface in store.surfaces()] == ["", ""]


def test_an_upgraded_schema_equals_the_models(tmp_path: Path) -> None:
    store_of_schema_1(tmp_path / "store.db")
    open_store(str(tmp_path / "store.db")).close()
    engine = sqlite_engine(resolve_url(str(tmp_path / "store.db")))
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


def test_up_and_down_again_leaves_the_first_version_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store_of_schema_1(file)
    queries = [f"SELECT * FROM {table} ORDER BY id" for table in ("spectune_surface", "spectune_measurement")]
    queries.append("SELECT name, tbl_name FROM sqlite_master ORDER BY name")
    before = [read(file, query) for query in queries]
    open_store(str(file)).close()
    downgrade(file, "0001")
    assert [read(file, query) for query in queries] == before


def test_a_downgrade_joins_surfaces_that_differ_in_attention_alone(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    key = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32")
    with open_store(str(file)) as store:
        for attention, tokens in (("", 1), ("sdpa", 2), ("eager", 3)):
            cell = Measurement(batch=1, context_tokens=0, tokens=tokens, repeats_ms=(1.0,))
            store.add_measurements(replace(key, attention=attention), [cell])
    downgrade(file, "0001")
    assert read(file, "SELECT id FROM spectune_surface") == [(1,)]
    assert read(file, "SELECT surface_id, tokens FROM spectune_measurement ORDER BY id") == [(1, 1), (1, 2), (1, 3)]


def test_a_downgrade_with_a_profile_under_way_succeeds(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with open_store(str(file)) as store:
        store.open_profile("key").add_part("name", "document")
    downgrade(file, "0001")
    assert not {"spectune_profile", "spectune_visit", "spectune_part"} & tables_of(file)


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


def test_the_stores_of_these_tests_which_are_copies_are_those_that_alembic_makes(
    tmp_path: Path, engine: Engine
) -> None:
    for name in ("first.db", "copy.db"):
        open_store(str(tmp_path / name)).close()
    copy = sqlite_engine(resolve_url(str(tmp_path / "copy.db")))
    with engine.execution_options(spectune_writes=True).begin() as connection:
        command.upgrade(migration_config(connection), HEAD)  # none of conftest's: that is asked for "head"
        expected = statements_of(connection)
    with copy.begin() as connection:
        copied = statements_of(connection)
    copy.dispose()
    assert comparable(copied) == comparable(expected)


def comparable(statements: list[tuple[str, tuple[Any, ...]]]) -> list[tuple[list[str], list[str], tuple[Any, ...]]]:
    """Return the statements with each table's constraints in one order: alembic takes those from a set."""
    told = []
    for statement, values in statements:
        lines = [line.strip().removesuffix(",") for line in statement.splitlines()]
        constraints = sorted(line for line in lines if line.startswith("CONSTRAINT"))
        told.append(([line for line in lines if line not in constraints], constraints, values))
    return told
