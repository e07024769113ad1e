"""The worked example of docs/dev/structure.md: a new option of a command is a change of two files at most."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMPTS = '{"prompt": "one"}\n{"prompt": "two"}\n'
EDITS = (  # a file, the line it goes before, and what is new
    (
        "cli/profile.py",
        "    ray_address: str | None = ray_address\n",
        '    least_prompts: int = whole("Refuse fewer prompts.", default=2)\n',
    ),
    (
        "tuning/request.py",
        "    seed: int = 0\n\n    def __post_init__(self) -> None:\n        require_printed(",
        "    least_prompts: int = 2\n",
    ),
    (
        "tuning/request.py",
        "        if len(self.prompts) < 2:\n",
        """
        if len(self.prompts) < self.least_prompts:
            raise RequestError(f"got {len(self.prompts)} prompts, want {self.least_prompts}; add some")
""",
    ),
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is changed, link to the rest, and change it."""
    folder = tmp_path_factory.mktemp("changed")
    changed = {name.partition("/")[0] for name, _, _ in EDITS}
    for entry in ROOT.iterdir():
        if entry.name in changed:
            shutil.copytree(entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    (folder / ".types").mkdir()
    (folder / ".types" / "spectune").symlink_to("..")
    for name, before, new in EDITS:
        text = (folder / name).read_text()
        assert text.count(before) == 1, f"{name} has changed: give the example another place"
        (folder / name).write_text(text.replace(before, f"{new.lstrip(chr(10))}{before}"))
    (folder / "two.jsonl").write_text(PROMPTS)
    return folder


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "PYTHONPATH": str(folder / ".types"), "SPECTUNE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-c", "from spectune.cli import main; main()", "profile", *words]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_the_option_and_the_request_that_it_is_of_are_all_that_a_new_one_takes() -> None:
    assert len({name for name, _, _ in EDITS}) <= 2


def test_a_new_option_stands_in_the_help_with_its_default_and_is_checked(copy: Path) -> None:
    shown = typed(copy, "--help").stdout
    assert "--least-prompts" in shown and "[default: 2; x>=1]" in shown.partition("--least-prompts")[2]
    wrong = typed(copy, "--target", "./nowhere", "--least-prompts", "none")
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_a_new_option_arrives_in_the_request(copy: Path) -> None:
    words = ("--target", str(ROOT / "demo" / "models" / "target"), "--prompts", "two.jsonl", "--batch", "1")
    refused = typed(copy, *words, "--least-prompts", "9", "--dry-run")
    assert refused.returncode == 1
    assert "got 2 prompts, want 9; add some" in refused.stderr
