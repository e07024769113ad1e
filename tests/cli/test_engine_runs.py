"""`--engine transformers`: profile, plan and validate on tiny models, as they are typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spectune.cli import main

from ..support.tiny_family import save_model

TEXTS = ("def main(): return 1", "return main", "def def(): 1", "main(): return def")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a target, a drafter that knows it, prompts and a store that holds a profile."""
    root = tmp_path_factory.mktemp("engine")
    save_model(root / "target", layers=2, seed=1)
    save_model(root / "small", layers=2, seed=1)
    (root / "prompts.txt").write_text("\n\n".join(TEXTS))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPECTUNE_CACHE", str(root / "cache"))  # another test may hold the device
        patched.setattr("spectune.tuning.engines.turns.SETTLE_S", 0.0)
        told = typed(root, "profile", "--drafter", f"small={root / 'small'}", "--dtype", "float32", *texts_of(root))
        (root / "profile.txt").write_text(told)
        yield root


def texts_of(root: Path) -> tuple[str, ...]:
    return ("--prompts", str(root / "prompts.txt"), "--max-new-tokens", "16", "--max-prompt-tokens", "16")


def typed(root: Path, command: str, *words: str) -> str:
    """Return what a command prints on stdout."""
    common = ("--engine", "transformers", "--target", str(root / "target"), "--store", str(root / "store.db"))
    done = CliRunner().invoke(main, [command, *common, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_profile_tells_its_rounds_and_how_often_the_drafter_is_right(folder: Path) -> None:
    told = (folder / "profile.txt").read_text()
    assert "rounds of transformers" in told and "round:plain" in told and "round:small" in told
    assert re.search(r"^ *small +\d+ +1\b", told, re.MULTILINE), told


def test_a_plan_prints_the_engine_s_command_and_keeps_what_it_says(folder: Path) -> None:
    printed = typed(folder, "plan", "-o", str(folder / "plan.json"))
    assert "python generate.py 'a prompt'" in printed
    (cell,) = json.loads((folder / "plan.json").read_text())["cells"]
    assert cell["batch"] == 1 and cell["predicted_tokens_per_s"] > 0


def test_a_plan_is_validated_on_the_engine(folder: Path) -> None:
    typed(folder, "plan")
    told = json.loads(typed(folder, "validate", *texts_of(folder), "--rounds", "1", "--json"))
    (row,) = told["rows"]
    assert row["tokens_per_round"] == pytest.approx(row["predicted_tokens_per_round"], rel=0.35)
    assert row["by_texts"] == pytest.approx(row["tokens_per_round"] / row["predicted_tokens_per_round"])
    assert row["measured_tokens_per_s"] > 0 and row["neighbour_tokens_per_s"] > 0


def test_a_profile_in_json_tells_no_error_of_what_was_timed_once(folder: Path) -> None:
    told = json.loads(typed(folder, "profile", "--drafter", f"small={folder / 'small'}", *texts_of(folder), "--json"))
    errors = {row["repeats"]: row["error"] for row in told["rounds"]}
    assert errors[1] is None and all(error is not None for repeats, error in errors.items() if repeats > 1)
