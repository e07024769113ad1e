"""`benchmarks/servers.py` on scripted servers: it stops in time, goes on where it stopped, and judges by its loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import servers
import servers_runs

from ..support.openai_program import LLAMA, VLLM, texts


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("humaneval", "mtbench"):
        lines = (json.dumps({"prompt": prompt.text}) for prompt in texts(16))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return tmp_path


def ran(models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """Run the script; return the JSON of its last line."""
    load = ("--concurrency", "1,2", "--requests", "4", "--tune-requests", "2", "--tokens", "24", "--rounds", "2")
    servers_words = ("--llama-server", " ".join(LLAMA[:-2]), "--vllm", " ".join(VLLM[:-2]))
    kept = ("--models", str(models), "--kept", str(models / "kept"), *servers_words)
    monkeypatch.setattr(sys, "argv", ["servers.py", *kept, *load, *words])
    servers.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("cell", ["llamacpp-humaneval", "vllm-humaneval"])
def test_a_cell_is_tuned_swept_and_raced(
    cell: str, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ran(models, capsys, monkeypatch, "--only", cell)
    (row,) = told["files"]
    assert (row["cell"], row["starts"] <= 4, told["unfinished"]) == (cell, True, {})
    assert len(row["swept"]) == 8 * 2  # settings and concurrencies
    for at, chosen in row["chosen"].items():
        raced = {name.rpartition(" at ")[0] for name in row["raced"] if name.endswith(f" at {at}")}
        best = sorted((name for name in row["swept"] if name.endswith(f" at {at}")), key=row["swept"].get)[-3:]
        assert raced == {chosen, *(name.rpartition(" at ")[0] for name in best)}
        assert 0.8 < row["share_of_best"][at] <= 1.0
    assert {claim["what"] for claim in told["claims"]} == {"worth", "starts", "time", "predictions", "intervals"}
    assert told["holds"] == all(claim["holds"] for claim in told["claims"])
    assert row["sweep_s"] > row["tune_s"] > 0.0
    settings = {name.rpartition(" at ")[0] for name in row["swept"]}
    assert {one["setting"] for one in row["predictions"]} <= settings


def test_a_run_that_is_out_of_time_goes_on_where_it_stopped(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, moments = iter(range(10_000)), {6, 15, 27}

    def check(_: servers_runs.Deadline) -> None:
        if next(checks) in moments:
            raise servers_runs.OutOfTimeError

    monkeypatch.setattr(servers_runs.Deadline, "check", check)
    before: list[Any] = []
    for _ in moments:
        told = ran(models, capsys, monkeypatch, "--only", "llamacpp-humaneval")
        assert (list(told["unfinished"]), told["holds"], told["claims"]) == (["llamacpp-humaneval"], None, [])
        content = json.loads((models / "kept" / "llamacpp-humaneval.json").read_text())
        assert content["loads"][: len(before)] == before
        before = content["loads"]
    told = ran(models, capsys, monkeypatch, "--only", "llamacpp-humaneval")
    assert told["unfinished"] == {} and told["holds"] is not None
    content = json.loads((models / "kept" / "llamacpp-humaneval.json").read_text())
    places = [
        (one["phase"], one["round"], one["setting"], one["trial"]["concurrency"])
        for one in map(json.loads, content["loads"])
    ]
    assert len(set(places)) == len(places) and content["loads"][: len(before)] == before
    again = ran(models, capsys, monkeypatch, "--only", "llamacpp-humaneval")  # nothing is measured
    assert again["files"] == told["files"]


def test_loads_of_other_options_are_not_mixed(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ran(models, capsys, monkeypatch, "--minutes", "0")
    why = "it did not end within 0 minutes"
    assert told["unfinished"] == {"llamacpp-humaneval": why, "llamacpp-mtbench": why}
    file = models / "kept" / "llamacpp-humaneval.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"options": {"tokens": 64}, "bundle": None, "tune_s": 0.0, "loads": []}))
    with pytest.raises(SystemExit, match="begin anew with --again"):
        ran(models, capsys, monkeypatch, "--only", "llamacpp-humaneval")
