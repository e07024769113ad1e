"""Trials that outlive a search: gone on with, shared by processes, and never in the way of a fresh one."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from spectune.errors import StoreError
from spectune.tuning.studies import StoredStudies

from ..support.postgres_server import PostgresServer, postgres

__all__ = ["postgres"]


@pytest.fixture(autouse=True)
def _tests_are_found_by_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned process takes over this one's path, and looks for what it is to run in `tests`."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def place_of(kind: str, folder: Path) -> str | None:
    return {"sqlite": f"sqlite:///{folder / 'trials.db'}", "journal": str(folder / "trials.log"), "memory": None}[kind]


def tried(study: optuna.Study, count: int) -> list[float]:
    """Let a study go on by some trials and return every x it has finished."""
    for _ in range(count):
        trial = study.ask()
        study.tell(trial, -((trial.suggest_float("x", 0.0, 4.0) - 1.0) ** 2))
    return [trial.params["x"] for trial in study.get_trials(states=[TrialState.COMPLETE])]


def try_many(url: str, names: list[str], count: int) -> None:
    studies = StoredStudies(storage_url=url)
    for name in names:
        tried(studies(name), count)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_study_goes_on_where_it_stopped(kind: str, tmp_path: Path) -> None:
    first = tried(StoredStudies(storage_url=place_of(kind, tmp_path))("a"), 3)
    assert tried(StoredStudies(storage_url=place_of(kind, tmp_path))("a"), 2)[:3] == first


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_study_that_goes_on_tries_nothing_twice(kind: str, tmp_path: Path) -> None:
    studies = StoredStudies(storage_url=place_of(kind, tmp_path))
    tried(studies("a"), 3)
    assert len(set(tried(studies("a"), 3))) == 6


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_fresh_study_draws_as_one_in_memory(kind: str, tmp_path: Path) -> None:
    stored, in_memory = (StoredStudies(storage_url=place_of(each, tmp_path)) for each in (kind, "memory"))
    assert tried(stored("a"), 12) == tried(in_memory("a"), 12)


@pytest.mark.parametrize("change", [{"name": "b"}, {"seed": 1}])
def test_another_name_or_seed_draws_otherwise(change: dict[str, object]) -> None:
    asked = {"name": "a", "seed": 0} | change
    assert tried(StoredStudies()("a"), 3) != tried(StoredStudies(seed=int(str(asked["seed"])))(str(asked["name"])), 3)


@pytest.mark.parametrize("kind", ["sqlite", "journal", "memory"])
def test_a_study_maximises(kind: str, tmp_path: Path) -> None:
    study = StoredStudies(storage_url=place_of(kind, tmp_path))("a")
    tried(study, 5)
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    assert study.best_value == max(trial.value or -9.0 for trial in study.get_trials())


def test_studies_survive_the_way_to_another_process(tmp_path: Path) -> None:
    studies = StoredStudies(storage_url=place_of("sqlite", tmp_path), seed=3)
    studies("a")  # opens the storage
    assert pickle.loads(pickle.dumps(studies)) == studies


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_two_processes_share_one_new_sqlite_file(names: list[str], tmp_path: Path) -> None:
    url, context = f"sqlite:///{tmp_path / 'trials.db'}", multiprocessing.get_context("spawn")
    processes = [context.Process(target=try_many, args=(url, order, 6)) for order in (names, names[::-1])]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    for name in names:
        trials = StoredStudies(storage_url=url)(name).get_trials()
        assert [trial.number for trial in trials] == list(range(12))
        assert {trial.state.name for trial in trials} == {"COMPLETE"}


def test_trials_may_lie_in_the_file_of_a_store(tmp_path: Path) -> None:
    from spectune.db import open_store

    with open_store(str(tmp_path / "trials.db")) as opened:
        tried(StoredStudies(storage_url=place_of("sqlite", tmp_path))("a"), 1)
        assert opened.plans() == []
    with open_store(str(tmp_path / "trials.db")):
        assert len(tried(StoredStudies(storage_url=place_of("sqlite", tmp_path))("a"), 1)) == 2


def test_trials_and_a_store_share_one_postgresql_database(postgres: PostgresServer) -> None:
    from spectune.db import open_store

    url = postgres.new_database()
    with open_store(url) as opened:
        first = tried(StoredStudies(storage_url=url)("a"), 3)
        assert opened.plans() == []
    with open_store(url) as opened:
        assert tried(StoredStudies(storage_url=url)("a"), 2)[:3] == first
        assert opened.plans() == []


def test_optuna_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optuna.logging.enable_propagation()
    try:
        with caplog.at_level(logging.DEBUG):
            tried(StoredStudies(storage_url=place_of("sqlite", tmp_path))("a"), 1)
    finally:
        optuna.logging.disable_propagation()
    assert not [record for record in caplog.records if record.name.startswith("optuna")]


def test_a_file_that_is_no_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "trials.db").write_text("this is no database")
    with pytest.raises(StoreError, match="not an SQLite file"):
        StoredStudies(storage_url=place_of("sqlite", tmp_path))("a")
    assert (tmp_path / "trials.db").read_text() == "this is no database"


def test_a_storage_of_another_version_of_optuna_is_refused_in_one_line(tmp_path: Path) -> None:
    tried(StoredStudies(storage_url=place_of("sqlite", tmp_path))("a"), 1)
    with closing(sqlite3.connect(tmp_path / "trials.db")) as database:
        database.execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
    with closing(sqlite3.connect(tmp_path / "copy.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'v9.9.9'")
    with pytest.raises(StoreError, match=r"cannot keep trials in sqlite:.*copy\.db: ") as refusal:
        StoredStudies(storage_url=f"sqlite:///{tmp_path / 'copy.db'}")("a")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("postgresql://me:secret@127.0.0.1:1/trials", "cannot keep trials in postgresql"),
        ("nonsense://me:secret@host/trials", "cannot keep trials in nonsense"),
        ("redis://me:secret@host", "cannot keep trials in redis"),
        ("trials.db", r"write sqlite:///trials\.db"),
        ("no/such/folder/trials.log", "cannot keep trials in no/such/folder"),
    ],
)
def test_a_place_that_cannot_be_used_is_named_without_its_password(place: str, complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint) as refusal:
        StoredStudies(storage_url=place)("a")
    assert "secret" not in str(refusal.value)
