"""`spectune db` looks after a store: what it prints is true, and its exit code says whether all is well."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.db.sql.migrate import HEAD

from ..support.store_records import SURFACE, cell, surface, trace


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the path of a store with a superseded cell in it."""
    place = str(tmp_path / "store.db")
    with open_store(place) as store:
        store.add_trace(trace())
        for ms in (1.0, 2.0):
            store.open_profile("key", fresh=True).finish_surfaces([surface(cell(1, ms), key=SURFACE)])
    return place


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["db", *words])


def facts(*words: str) -> Any:
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def damage(file: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("DROP TRIGGER spectune_trace_no_update")
        connection.execute("UPDATE spectune_trace SET document = document || ' '")
    connection.close()


def test_upgrade_makes_a_store_and_names_its_schema(tmp_path: Path) -> None:
    assert facts("upgrade", "--store", str(tmp_path / "new.db"))["schema"] == HEAD
    assert (tmp_path / "new.db").is_file()


def test_check_says_that_a_sound_store_is_sound(file: str) -> None:
    assert facts("check", "--store", file) == {"store": f"sqlite:///{file}", "faults": [], "is_sound": True}
    assert run("check", "--store", file).stdout == f"sqlite:///{file} is sound\n"


def test_check_lists_every_fault_and_exits_with_1(file: str) -> None:
    damage(file)
    done = run("check", "--store", file, "--json")
    assert (done.exit_code, len(json.loads(done.stdout)["faults"])) == (1, 2)
    assert "row 1 of spectune_trace" in run("check", "--store", file).stdout


@pytest.mark.parametrize("content", [None, b"no store", b"SQLite format 3\0" + bytes(4096)])
def test_check_of_what_is_no_store_is_a_fault(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.db").write_bytes(content)
    done = run("check", "--store", str(tmp_path / "x.db"), "--json")
    assert (done.exit_code, json.loads(done.stdout)["is_sound"]) == (1, False)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([] if content is None else [content])


def test_an_export_is_imported_once(file: str, tmp_path: Path) -> None:
    assert facts("export", str(tmp_path / "out"), "--store", file)["files"] == {"surface": 1, "trace": 1}
    other = str(tmp_path / "other.db")
    assert facts("import", str(tmp_path / "out"), "--store", other)["added"] == {"measurement": 2, "trace": 1}
    assert facts("import", str(tmp_path / "out"), "--store", other)["added"] == {}


def test_another_store_is_imported_by_its_path(file: str, tmp_path: Path) -> None:
    done = run("import", file, "--store", str(tmp_path / "other.db"))
    assert done.stdout.endswith(
        "added to sqlite:///" + str(tmp_path / "other.db") + ": 2 measurements, 1 trace; there already: nothing\n"
    )


def test_a_source_that_is_not_there_is_refused(file: str, tmp_path: Path) -> None:
    done = run("import", str(tmp_path / "nowhere"), "--store", file)
    assert (done.exit_code, "there is no store at" in done.output) == (1, True)
    assert not (tmp_path / "nowhere").exists()


def test_prune_lists_what_it_takes_out_and_a_dry_run_takes_nothing(file: str) -> None:
    told = facts("prune", "--dry-run", "--store", file)["rows"]
    assert [(row["kind"], row["rows"]) for row in told] == [("measurement", 1)]
    assert facts("prune", "--store", file)["rows"] == told
    assert run("prune", "--store", file).stdout == f"0 rows were taken out of sqlite:///{file}\n"


def test_backup_names_the_file_it_wrote(file: str, tmp_path: Path) -> None:
    done = run("backup", str(tmp_path / "copy.db"), "--store", file)
    assert done.stdout == f"wrote {tmp_path / 'copy.db'}, a copy of sqlite:///{file}\n"
    assert run("check", "--store", str(tmp_path / "copy.db")).exit_code == 0


@pytest.mark.parametrize("command", [["check"], ["prune"], ["export", "out"], ["upgrade"]])
def test_a_service_looks_after_its_own_store(command: list[str]) -> None:
    done = run(*command, "--store", "https://host")
    assert (done.exit_code, "a service looks after its own store" in done.output) == (1, True)
