"""`--engine` of profile, plan and validate."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.cli.engine import NAMES
from spectune.runtime.engines.running import RUNNING, own_dtype


def refused(*words: str) -> str:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code != 0
    return found.output


def test_the_engines_that_run_are_the_ones_that_are_offered() -> None:
    assert set(NAMES) == set(RUNNING)


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


@pytest.mark.parametrize("command", ["profile", "plan"])
def test_a_target_is_needed(command: str) -> None:
    assert "Give --target" in refused(command, "--engine", "llama.cpp")


def test_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp's wheel is not installed")
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
