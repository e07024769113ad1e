"""Write what lies beside this file, as version 0320424 writes it. Run it at that commit only.

    python -m tests.data.v0320424.write

Tests hold later versions to these files; written by a later version they would hold nothing.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from spectune.cli import main

from ...support.coarse_design import TURNS, CoarseDesign
from ...support.sent_bodies import described

HERE = Path(__file__).parent
MODELS = HERE.parents[2] / "demo" / "models"
WORK = Path("/tmp/spectune-0320424")  # the store holds where models lie, so that this is the same on every machine
STORE, COPY = WORK / "store.db", WORK / "copy.db"
DRAFTERS = ("small", "eagle3")  # a model and a head
PROMPTS = 5
LENGTHS = ("--dtype", "float32", "--max-new-tokens", "24", "--max-prompt-tokens", "32")
MEASURED = ("--record", "quick", "--budget", "300", "--held-out", "3", "--batch", "1,4", *LENGTHS)  # far less is used
SOLVED = ("--dtype", "float32", "--batch", "1,4", "--context", "40", "--trials", "4", "--seed", "3")


def write() -> None:
    """Profile, plan, validate and decode with the demo's models; then plan again, from all of it."""
    WORK.mkdir()
    for name in ("target", *DRAFTERS):
        shutil.copytree(MODELS / name, WORK / name)
    for name in ("calibration", "evaluation"):
        lines = (MODELS / f"{name}.jsonl").read_text().splitlines(keepends=True)
        (WORK / f"{name}.jsonl").write_text("".join(lines[:PROMPTS]))
    drafters = [f"--drafter={name}={WORK / name}" for name in DRAFTERS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectune.profiler.latency.AdaptiveDesign", CoarseDesign)
        for name in TURNS:
            patch.setattr(f"spectune.tuning.measuring.overhead.{name}", 1)
        spectune("profile", *drafters, "--prompts", f"{WORK / 'calibration.jsonl'}", *MEASURED)
    spectune("plan", *SOLVED)
    spectune("validate", "--prompts", f"{WORK / 'evaluation.jsonl'}", "--rounds", "1", *LENGTHS)
    spectune("run", "--prompt", "def main():", "--max-new-tokens", "64", "--dtype", "float32")
    spectune("plan", *SOLVED, "-o", str(HERE / "plan.json"))
    shutil.rmtree(HERE / "exchange", ignore_errors=True)
    command("db", "export", str(HERE / "exchange"), "--store", str(STORE))
    with sqlite3.connect(STORE) as connection:
        connection.execute("VACUUM INTO ?", (str(COPY),))
    pack("store.db", COPY.read_bytes())
    api = described()
    pack("openapi.json", json.dumps(api.document).encode())
    bodies = dict.fromkeys(json.dumps(body, indent=1) for body in api.bodies.values())
    (HERE / "wire.json").write_text(f"[{', '.join(bodies)}]\n")


def spectune(name: str, *options: str) -> None:
    """Run a command on the target and the store."""
    command(name, "--target", str(WORK / "target"), "--store", str(STORE), *options)


def command(*arguments: str) -> None:
    """Run a command to its end."""
    result = CliRunner().invoke(main, arguments)
    print(result.output, flush=True)
    assert result.exit_code == 0, result.exception


def pack(name: str, content: bytes) -> None:
    """Write a compressed file, the same bytes for the same content."""
    (HERE / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))


if __name__ == "__main__":
    write()
