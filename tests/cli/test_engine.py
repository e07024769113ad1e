"""`--engine` of profile, plan and validate."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.cli.engine import PLAN, PROFILE, TOLD, VALIDATE
from spectune.db import open_store
from spectune.engines.running import own_dtype

from ..support.engine_profiles import profiled, saved_models
from ..support.llama_program import use_fake

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "engines.md").read_text()


def refused(*words: str) -> str:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code != 0
    return found.output


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("profile", "--engine", "llama.cpp", "--target", "x", "--regime", "compiled"), "--regime"),
        (("profile", "--engine", "llama.cpp", "--target", "x", "--dry-run"), "--dry-run"),
        (("plan", "--engine", "llama.cpp", "--target", "x", "--slo", "itl<=9ms"), "--slo"),
        (("validate", "--engine", "llama.cpp", "--target", "x", "--temperature", "1"), "--temperature"),
    ],
)
def test_options_of_our_own_decoder_are_refused(words: tuple[str, ...], option: str) -> None:
    assert f"{option} is of spectune's own decoder" in refused(*words)


@pytest.mark.parametrize(
    ("command", "known"), [("profile", PROFILE | TOLD), ("plan", PLAN), ("validate", VALIDATE | TOLD | {"fail_above"})]
)
def test_what_is_taken_beside_an_engine_is_what_its_page_lists(command: str, known: set[str]) -> None:
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| `{command}` |")]
    listed = re.findall(r"`(-[-a-z]+)`", row)
    found = main.get_command(click.Context(main), command)
    assert found is not None
    taken = {str(one.name): one.opts[0] for one in found.params}
    assert sorted(listed) == sorted(taken[name] for name in known - {"engine"})


@pytest.mark.parametrize("command", ["profile", "plan"])
def test_a_target_is_needed(command: str) -> None:
    assert "Give --target" in refused(command, "--engine", "llama.cpp")


def test_a_target_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake(monkeypatch, tmp_path)
    store = str(tmp_path / "store.db")
    told = refused("profile", "--engine", "llama.cpp", "--target", str(tmp_path / "none.gguf"), "--store", store)
    assert "no GGUF file" in told


def test_a_plan_without_a_profile_says_how_to_make_one(tmp_path: Path) -> None:
    from spectune.demo.story import family_folder

    store = str(tmp_path / "store.db")
    told = refused("plan", "--engine", "llama.cpp", "--target", str(family_folder() / "target"), "--store", store)
    assert "spectune profile --engine llama.cpp" in told


@pytest.mark.parametrize(
    ("engine", "native", "runs"),
    [("openvino", "bfloat16", "float32"), ("openvino", "float16", "float16"), ("llama.cpp", "bfloat16", "bfloat16")],
)
def test_an_engine_runs_in_the_device_s_own_format_where_it_can(engine: str, native: str, runs: str) -> None:
    assert own_dtype(engine, native) == runs


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Return what planning says for an engine whose concurrencies want lengths of their own."""
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path))  # another test may hold the device
    monkeypatch.setattr("spectune.tuning.engines.turns.SETTLE_S", 0.0)
    models = saved_models(tmp_path)
    with open_store(str(tmp_path / "store.db")) as store:
        profiled(models, store)
    words = ("plan", "--engine", "llama.cpp", "--target", str(models.target), "--store", str(tmp_path / "store.db"))
    return CliRunner().invoke(main, list(words))


def test_a_plan_says_which_line_serves_all_concurrencies_and_what_each_loses(planned: Result) -> None:
    assert planned.exit_code == 0, planned.output
    assert "llama-server --model target.gguf --spec-type draft-simple" in planned.stdout
    assert "what llama.cpp b11549 cannot carry" in planned.stdout
    assert "of the plan's speed, the geometric mean over its cells (re-solved)" in planned.stdout
    assert "note: speeds are of the regime 'engine:llama.cpp-b11549'" in planned.stdout


def test_a_folder_of_openvino_is_a_target(tmp_path: Path) -> None:
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).write_text("<net/>")
    told = refused("plan", "--engine", "openvino", "--target", str(tmp_path), "--store", str(tmp_path / "store.db"))
    assert "spectune profile --engine openvino" in told
