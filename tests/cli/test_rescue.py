"""A store that takes nothing more: the disk is named, and the result is kept elsewhere."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from spectune.cli import main
from spectune.cli.rescue import rescued
from spectune.db import open_store
from spectune.db.sql.engines import one_line_errors
from spectune.errors import RequestError, StoreError
from spectune.planner.plans.document import plan_from_json

from .test_plan import CELL, files, given

__all__ = ["files"]  # a fixture
FULL = "CREATE TRIGGER full BEFORE INSERT ON spectune_plan BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"


def plan_on_a_full_disk(folder: Path, documents: Mapping[str, str], *more: str) -> str:
    """Return what is said of a plan whose store takes none."""
    store = folder / "mine.db"
    open_store(str(store)).close()
    connection = sqlite3.connect(store)
    connection.execute(FULL)
    connection.close()
    places = {"SPECTUNE_CACHE": str(folder / "run")}
    result = CliRunner(env=places).invoke(main, ["plan", *given(documents), *CELL, "--store", str(store), *more])
    assert result.exit_code == 1
    return result.output


def test_a_plan_is_written_beside_a_store_that_is_full(
    files: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = plan_on_a_full_disk(tmp_path, files)
    (kept,) = tmp_path.glob("spectune-plan-*.json")
    assert "database or disk is full; free some space; the plan is not lost: it is in" in said and kept.name in said
    assert plan_from_json(kept.read_text()).cells[0].batch == 1


def test_a_plan_goes_to_the_file_that_was_asked_for(files: Mapping[str, str], tmp_path: Path) -> None:
    said = plan_on_a_full_disk(tmp_path, files, "-o", str(tmp_path / "plan.json"))
    assert f"it is in {tmp_path / 'plan.json'}" in said
    assert plan_from_json((tmp_path / "plan.json").read_text()).cells


@pytest.mark.parametrize("what", ["plan", "validation"])
def test_where_no_file_can_be_written_the_result_is_printed(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(path: Path, _content: str) -> None:
        raise RequestError(f"cannot write {path} (No space left on device)")

    monkeypatch.setattr("spectune.cli.rescue.write_whole", write)
    with pytest.raises(StoreError, match=f"full; the {what} is not lost: it is on stdout"), rescued(what, '{"a": 1}'):
        raise StoreError("full")
    assert capsys.readouterr().out == '{"a": 1}\n'


@pytest.mark.parametrize(
    ("reason", "free", "told"),
    [
        ("disk I/O error", 0, "disk I/O error: the disk is full; free some space"),
        ("unable to open database file", 0, "the disk is full; free some space"),
        ("disk I/O error", 2**40, "disk I/O error; see that its disk works and has space left"),
        ("could not extend file: No space left on device", 2**40, "No space left on device; free some space"),
        ("database is locked", 0, "wait for it or stop it"),
    ],
)
def test_a_full_disk_is_named(reason: str, free: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=free))
    with pytest.raises(StoreError) as raised, one_line_errors(make_url("sqlite:////tmp/a.db")):
        raise OperationalError("INSERT", {}, sqlite3.OperationalError(reason))
    assert str(raised.value).endswith(told) and "URL" not in str(raised.value)


def test_a_store_on_a_full_disk_says_what_to_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        open_store(str(tmp_path / "store.db"))
