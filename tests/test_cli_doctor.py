"""`spectune doctor`: what it looks at, and when it says that something is broken."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.findings import library_findings
from spectune.db import open_store


def doctor(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--store", str(store), *arguments])


def test_a_sound_machine_exits_0_and_names_its_processor_and_torch(tmp_path: Path) -> None:
    result = doctor(tmp_path / "store.db")
    assert result.exit_code == 0
    assert "torch threads" in result.stdout
    assert version("torch") in result.stdout


def test_a_store_that_is_not_there_is_a_note_and_is_not_made(tmp_path: Path) -> None:
    found = json.loads(doctor(tmp_path / "deep" / "store.db", "--json").stdout)
    assert found["findings"][-1] | {"seen": ""} == {
        "name": "store",
        "seen": "",
        "verdict": "note",
        "advice": "spectune profile makes it",
    }
    assert not list(tmp_path.iterdir())


def test_a_store_that_opens_is_ok(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store.db")).close()
    assert json.loads(doctor(tmp_path / "store.db", "--json").stdout)["findings"][-1]["verdict"] == "ok"


@pytest.mark.parametrize("name", ["store.db", "store.db/below.db"])
def test_a_store_that_cannot_be_used_is_broken_and_stays_as_it_was(name: str, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("no database")
    result = doctor(tmp_path / name, "--json")
    assert (result.exit_code, json.loads(result.stdout)["is_sound"]) == (1, False)
    assert result.stderr.startswith("Error: broken: store")
    assert (tmp_path / "store.db").read_text() == "no database"


@pytest.mark.parametrize(
    ("requirement", "verdict"),
    [
        ("click>=1", "ok"),
        ("click>=999.1", "broken"),
        ("surely-not-installed>=1.0", "broken"),
        (f"click>={version('click')}.0", "ok"),  # trailing zeros do not count
    ],
)
def test_a_library_below_its_minimum_or_missing_is_broken(requirement: str, verdict: str) -> None:
    (found,) = library_findings([requirement])
    assert found.verdict == verdict
    assert bool(found.advice) == (verdict == "broken")


def test_extras_are_not_looked_at() -> None:
    assert not list(library_findings(['surely-not-installed>=1.0; extra == "dev"']))
