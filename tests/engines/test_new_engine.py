"""The worked example of docs/dev/structure.md: a new engine is a folder of its own, its name and its package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA, FAMILY = ROOT / "tests" / "data" / "v0320424", ROOT / "demo" / "models"
FOLDER = {  # what `engines/scripted/` holds
    "__init__.py": '"""An engine that is there for a test."""\n',
    "export.py": """
from ...planner.strategies.chain import ChainPolicy
from ..base import ExportEngine, Written
from ..grids import CHAINS
from ..setting import Setting


class Scripted(ExportEngine):
    name = "scripted"

    def setting(self, policy, drafter, version):
        if drafter is None or not isinstance(policy, ChainPolicy):
            return "scripted drafts chains alone"
        return Setting(method="chain", drafter=drafter, knobs=(), length=policy.length, by_batch=True, off="any")

    def sampled(self, setting, version):
        return setting

    def candidates(self, drafter, version):
        return () if drafter is None else CHAINS

    def written(self, schedule, target, version):
        lengths = [("flags", f"tokens-{stage.first}", stage.length) for stage in schedule.stages]
        flags = tuple(part for _, name, value in lengths for part in (f"--{name}", str(value)))
        return Written(flags=flags, command=" ".join(("scripted", *flags)), options=(*lengths,))

    def rules(self, options):
        yield len(options) < 9, "it takes eight lengths at most"


EXPORT = Scripted()
""",
    "schema.json": """{"engine": "scripted", "versions": ["1"], "sources": ["this test"], "sections": {"flags": {
"tokens-1": {"type": "int", "least": 0}, "tokens-2": {"type": "int", "least": 0}, "tokens-3": {"type": "int"}}}}""",
    "counters.py": """
from ..counters import CounterNames

COUNTERS = CounterNames.with_prefix("scripted:", generated="tokens", running="running", answers=("answers",))
""",
    "server.py": """
from ..server_engine import ServerEngine
from .counters import COUNTERS


class ScriptedServer(ServerEngine):
    name = "scripted"
    takes_table = True
    counters = COUNTERS
    example = "scripted MODEL"

    def plain(self, command):
        return list(command)

    counted = plain

    def sources(self, command, drafters, longest, version):
        return ()

    def flags(self, source, lengths, version):
        return ()


SERVER = ScriptedServer()
""",
    "running.py": """
from ...errors import RequestError


def RUNNING(target, drafters, *, dtype, threads, folder):
    raise RequestError(f"nothing scripted runs {target.name} here")
""",
}
EDITS = (  # a file, the line it goes before, and what is new
    ("engines/table.py", '    "openvino",\n', '    "scripted",\n'),
    ("pyproject.toml", '    "spectune.engines.sglang",\n', '    "spectune.engines.scripted",\n'),
)
PAGE = """\
scripted:spec_decode_num_drafts_total 1000
scripted:spec_decode_num_draft_tokens_total 2000
scripted:spec_decode_num_accepted_tokens_total 900
scripted:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 600
scripted:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 300
scripted:tokens_total 2000
scripted:answers_total 100
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what is changed, link to the rest, and add the engine."""
    folder = tmp_path_factory.mktemp("changed")
    for entry in ROOT.iterdir():
        if entry.name == "engines":
            shutil.copytree(entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif entry.name == "pyproject.toml":
            shutil.copyfile(entry, folder / entry.name)
        elif not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    (folder / ".types").mkdir()
    (folder / ".types" / "spectune").symlink_to("..")
    for name, before, new in EDITS:
        text = (folder / name).read_text()
        assert text.count(before) == 1, f"{name} has changed: give the example another place"
        (folder / name).write_text(text.replace(before, f"{new}{before}"))
    (folder / "engines" / "scripted").mkdir()
    for name, text in FOLDER.items():
        (folder / "engines" / "scripted" / name).write_text(text)
    (folder / "four.jsonl").write_text("".join(f'{{"prompt": "{word}"}}\n' for word in ("one", "two", "three", "four")))
    (folder / "page.txt").write_text(PAGE)
    return folder


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "PYTHONPATH": str(folder / ".types"), "SPECTUNE_STORE": str(folder / "store.db")}
    command = [sys.executable, "-c", "from spectune.cli import main; main()", *words]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_beside_its_folder_a_new_engine_takes_a_line_of_the_table_and_of_the_list_of_packages() -> None:
    assert [(name, new.count("\n")) for name, _, new in EDITS] == [("engines/table.py", 1), ("pyproject.toml", 1)]


def test_a_plan_is_exported_for_it(copy: Path) -> None:
    models = [f"{name}={FAMILY / name}" for name in ("small", "eagle3")]
    drafters = [word for model in models for word in ("--drafter", model)]
    words = ("--plan", str(DATA / "plan.json"), "--target", str(FAMILY / "target"), *drafters)
    done = typed(copy, "export", "--engine", "scripted", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("scripted --tokens-1 ")


def test_its_server_is_started_to_be_tuned(copy: Path) -> None:
    done = typed(copy, "tune", "--engine", "scripted", "--prompts", "four.jsonl", "--concurrency", "1", "--", "false")
    assert done.returncode == 1
    assert "scripted does not start: it ended with status 1" in done.stderr


def test_its_page_of_counters_is_known(copy: Path) -> None:
    done = typed(copy, "advise", "page.txt", "--tpot", "0=7.1", "--tpot", "2=8.9")
    assert done.returncode == 0, done.stderr


def test_it_is_started_here_to_be_profiled(copy: Path) -> None:
    target = str(FAMILY / "target")
    done = typed(copy, "profile", "--engine", "scripted", "--target", target, "--prompts", "four.jsonl")
    assert done.returncode == 1
    assert "nothing scripted runs target here" in done.stderr
