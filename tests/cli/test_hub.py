"""Commands on models that are named by ids, and what they print and export."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import spectune
from spectune.cli import main
from spectune.cli.model import named_model
from spectune.db import open_store
from spectune.engines.base import served
from spectune.profiler.hub import resolve_model
from spectune.profiler.identity import identify

from ..support.fake_hub import FakeHub, commit_of, point_at, served_hub
from ..support.tiny_family import save_model

ASKED = ("--prompt", "def main", "--plan", "none", "--dtype", "float32", "--max-new-tokens", "4", "--json")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    folder = save_model(tmp_path / "saved", layers=1, seed=0)
    with served_hub() as hub:
        hub.repos["org/tiny"] = {"main": folder}
        yield hub


@pytest.fixture
def cached(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the model lies in a cache; nothing answers any more."""
    point_at(monkeypatch, hub.url, tmp_path / "cache")
    place = resolve_model("org/tiny")
    point_at(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    return place


def test_a_command_fetches_what_its_environment_names_and_decodes_alike(hub: FakeHub, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    told = subprocess.run(
        [sys.executable, "-m", "spectune", "-q", "run", "--target", "org/tiny", *ASKED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    by_path = CliRunner().invoke(main, ["-q", "run", "--target", str(tmp_path / "saved"), *ASKED])
    assert (told.returncode, by_path.exit_code) == (0, 0), told.stderr
    assert told.stdout == by_path.stdout != ""
    assert "Fetching" not in told.stderr
    assert "model.safetensors" in hub.fetched


def test_a_target_that_cannot_be_had_is_one_line(cached: Path) -> None:
    result = CliRunner().invoke(main, ["profile", "--target", "org/other"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("Error: no model folder at org/other, and org/other cannot be")


def test_what_is_wrong_with_options_is_told_before_anything_is_fetched(hub: FakeHub) -> None:
    result = CliRunner().invoke(main, ["profile", "--target", "org/tiny", "--tokens", "8"])
    assert result.exit_code == 2 and "--tokens is for timing alone" in result.stderr
    assert hub.asked == []


def test_load_takes_an_id(cached: Path) -> None:
    by_id, by_path = (spectune.load(each, plan="none", dtype="float32") for each in ("org/tiny", cached))
    assert [model.generate("def", max_new_tokens=4).text for model in (by_id, by_path)] == [
        by_path.generate("def", max_new_tokens=4).text
    ] * 2


def test_a_plan_s_target_may_be_an_id_that_was_fetched(cached: Path, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        assert named_model("org/tiny", store) == identify(cached)


def test_what_is_missing_is_said_with_a_command_for_the_id(cached: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["plan", "--target", "org/tiny", "--store", str(tmp_path / "store.db")])
    assert result.exit_code == 1
    assert "spectune profile --target org/tiny" in result.stderr


def test_servers_are_given_the_id_and_its_revision(cached: Path) -> None:
    assert served(str(cached)) == ("org/tiny", "--revision", commit_of("main"))
    assert served("models/tiny") == ("models/tiny",)
