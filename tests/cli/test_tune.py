"""`spectune tune` over real HTTP: what it chooses and says, how it ends, and what it leaves behind."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.engines.bundle import read_bundle
from spectune.engines.server import ServerTimeouts, started
from spectune.engines.server_engine import Start
from spectune.engines.table import SERVERS
from spectune.profiler.records.wire import to_json

from ..support.openai_program import LLAMA, VLLM, texts

LOAD = ("--concurrency", "1,2", "--requests", "4", "--max-new-tokens", "24", "--longest", "4")
MOMENTS = 20
KEY = "sesame-123"


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(f"{json.dumps({'prompt': prompt.text})}\n" for prompt in texts(8)))
    return str(file)


def typed(prompts: str, *words: str, command: tuple[str, ...] = LLAMA) -> Result:
    engine = "llama.cpp" if "--llama" in command else "vllm"
    whole = ["tune", "--engine", engine, "--prompts", prompts, *LOAD, *words, "--", *command]
    return runner(prompts).invoke(main, whole)


def runner(prompts: str) -> CliRunner:
    """Return what runs commands with a store beside the prompts."""
    return CliRunner(env={"SPECTUNE_STORE": str(Path(prompts).with_name("store.db"))})


def left_behind(mark: str) -> list[str]:
    """Return the processes whose command line holds a mark."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes().decode(errors="replace")
            state = (place / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark in line and "cli import main" not in line and state != "Z":
            found.append(line)
    return found


def wait_for_none(mark: str) -> None:
    end = time.monotonic() + 15.0
    while left_behind(mark) and time.monotonic() < end:
        time.sleep(0.05)
    assert left_behind(mark) == []


def test_a_good_draft_model_is_chosen_and_the_command_stays_as_it_is(prompts: str, tmp_path: Path) -> None:
    bundle = tmp_path / "out.json"
    command = (*LLAMA, "-md", "small.gguf", "--api-key", KEY)
    result = typed(prompts, "--starts", "4", "--bundle", str(bundle), command=command)
    assert result.exit_code == 0, result.output
    shown = result.stdout.splitlines()[-1]
    assert shown.startswith(" ".join([*LLAMA, "--api-key ... --metrics --spec-type draft-simple"]))
    assert "--spec-draft-model small.gguf" in shown
    assert "at most 4 starts of the server, 2 loads of 4 requests each" in result.stderr
    written = bundle.read_text()
    assert KEY not in written + result.output
    assert "Write a function" not in written
    found = read_bundle(bundle)
    assert found.chosen is not None and found.chosen.source == "small"
    assert 2 <= len(found.starts()) <= 4
    assert re.search(r"small, 4 tokens: 1 at once, at most \d+ s left", result.stderr)
    rows = [line.split() for line in result.stdout.splitlines() if line.split()[:1] in (["1"], ["2"])]
    ran = [(int(row[0]), 0 if row[1] == "none" else int(row[1])) for row in rows if "predicted," not in row]
    assert sorted(ran) == sorted((at, start.at(at)) for start in found.starts() for at in (1, 2))
    assert sum("chosen" in row for row in rows) == 2
    plain = next(row for row in rows if row[1] == "none")
    assert plain[3:5] == ["1.00", "0.00"]  # times plain, accepted a round


def test_drafts_that_gain_nothing_are_not_chosen(prompts: str, tmp_path: Path) -> None:
    bundle = tmp_path / "out.json"
    result = typed(prompts, "--starts", "3", "--rounds", "1", "--json", "--bundle", str(bundle))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["race"] is None and "nothing to compare" in told["notes"][-1]
    assert told["start"]["source"] == "plain"
    assert told["command"] == [*LLAMA, "--metrics"]
    assert {one["way"]["source"] for one in told["tried"]} == {start["source"] for start in told["starts"]}
    words = ["validate", "--bundle", str(bundle), "--prompts", prompts, "--", *LLAMA]
    again = runner(prompts).invoke(main, words)
    assert again.exit_code == 1
    assert "tune chose plain decoding, and so the command decodes; there is nothing to compare" in again.stderr


def test_a_table_of_lengths_is_one_start_of_vllm(prompts: str) -> None:
    result = typed(prompts, "--drafter", "small=org/small", "--json", command=VLLM)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["version"], told["start"]["source"]) == ("0.32.0", "small")
    config = json.loads(told["command"][-1])
    assert (config["method"], config["model"]) == ("draft_model", "org/small")
    assert all(choice["gain"] > 1.1 for choice in told["choices"])


def test_a_bound_that_nothing_holds_is_said(prompts: str) -> None:
    result = typed(prompts, "--starts", "2", "--slo", "tpot<=0.001ms")
    assert result.exit_code == 0, result.output
    assert "NO" in result.stdout
    assert typed(prompts, "--slo", "speed>1").exit_code == 2


def test_a_server_at_a_url_is_measured_and_not_stopped(prompts: str) -> None:
    with started(SERVERS["llama.cpp"], LLAMA, ServerTimeouts(start_s=30.0)) as running:
        words = ["tune", "--engine", "llama.cpp", "--prompts", prompts, *LOAD[:-2], "--server", running.address.url]
        result = runner(prompts).invoke(main, words)
        assert result.exit_code == 0, result.output
        assert "which starts it plainly" in result.stdout
        assert running.address.get("/health").is_success
        told = json.loads(runner(prompts).invoke(main, [*words, "--json", "--rate", "50"]).stdout)
    assert [(load["concurrency"], load["rate"]) for load in told["loads"]] == [(1, 0.0), (2, 0.0), (0, 50.0)]
    assert typed(prompts, "--rate", "50").exit_code == 2
    assert typed(prompts, "--rate", "x").exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("--bundle", "out.json"),
        ("--slo", "tpot<=20ms"),
        ("--rounds", "1"),
        ("--starts", "3"),
        ("--longest", "4"),
        ("--drafter", "small=org/small"),
        ("--draft-model", "org/small"),
    ],
)
def test_what_a_server_at_a_url_cannot_do_is_refused_by_name(words: tuple[str, ...]) -> None:
    asked = ["tune", "--engine", "llama.cpp", "--server", "http://127.0.0.1:1", *words]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 2 and f"{words[0]} is of a server that tune starts" in result.stderr


def test_a_command_and_a_url_exclude_each_other(prompts: str) -> None:
    assert typed(prompts, "--server", "http://127.0.0.1:1").exit_code == 2
    assert CliRunner().invoke(main, ["tune", "--engine", "vllm"]).exit_code == 2


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("ends at start", "plain decoding cannot be measured: llama.cpp does not start.*a certain reason"),
        ("500", "plain decoding cannot be measured: 4 of 4 requests failed, the first: status 500"),
        ("breaks off", "the answer broke off"),
    ],
)
def test_a_server_that_fails_is_an_error_of_one_line(
    prompts: str, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    result = typed(prompts)
    assert result.exit_code == 1
    assert re.search(said, result.stderr.splitlines()[-1])


def test_a_full_disk_is_an_error_of_one_line_and_leaves_what_was_saved(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two documents are saved; then the disk is full, and later it has room again."""
    bundle, command = tmp_path / "out.json", (*LLAMA, "-md", "small.gguf")
    words, written = ("--starts", "3", "--bundle", str(bundle)), list[Path]()

    def full(draft: Path, target: Path) -> Path:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(target)
        return rename(draft, target)

    rename = Path.replace
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        result = typed(prompts, *words, command=command)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert re.search(r"cannot write .*out\.json \(No space left on device\); free", result.stderr.splitlines()[-1])
    assert len(read_bundle(bundle).trials) == 1
    assert [*tmp_path.glob(".out.json*")] == []
    resumed = typed(prompts, *words, command=command)
    assert resumed.exit_code == 0 and "resuming: 1 loads ran before" in resumed.stderr
    assert read_bundle(bundle).chosen is not None


def test_drafts_of_a_file_are_no_plain_decoding_and_are_not_kept(prompts: str, tmp_path: Path) -> None:
    """An option that llama.cpp's rules do not know stands for a file that makes the server draft."""
    bundle = tmp_path / "out.json"
    command = (*LLAMA, "--speculative-config", '{"num_speculative_tokens": 3}')
    result = typed(prompts, "--bundle", str(bundle), command=command)
    assert result.exit_code == 1
    assert "move these options into the command" in result.stderr.splitlines()[-1]
    assert read_bundle(bundle).trials == ()


def test_what_was_measured_is_raced_against_the_server_as_it_was(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, command = tmp_path / "out.json", (*LLAMA, "-md", "small.gguf")
    assert typed(prompts, "--starts", "3", "--bundle", str(bundle), command=command).exit_code == 0
    words = ["validate", "--bundle", str(bundle), "--prompts", prompts, "--rounds", "1", "--json", "--", *command]
    result = runner(prompts).invoke(main, words)
    assert result.exit_code == 0, result.output
    assert re.search(r"round 1 of 1, the choice, 2 at once, about \d+ s left", result.stderr)
    told = json.loads(result.stdout)
    rows = told["rows"]
    assert not any("differ" in line for line in told["warnings"])
    assert [row["concurrency"] for row in rows] == [1, 2]
    assert all(row["gain"] > 1.1 for row in rows)
    with monkeypatch.context() as patched:
        patched.setenv("FAKE_FAULT", "loads forever")
        late = runner(prompts).invoke(main, [*words[:1], "--start-timeout", "1", *words[1:]])
    assert late.exit_code == 1 and "it was not up after 1 s" in late.stderr
    other = CliRunner().invoke(main, [*words, "--another"])
    assert other.exit_code == 1 and "the bundle is of another command" in other.stderr


def test_a_choice_that_was_not_worth_it_is_said(prompts: str, tmp_path: Path) -> None:
    """The bundle is made to choose n-grams, which are seldom right here."""
    bundle, command = tmp_path / "out.json", (*LLAMA, "-md", "small.gguf")
    assert typed(prompts, "--starts", "3", "--bundle", str(bundle), command=command).exit_code == 0
    found = read_bundle(bundle)
    bundle.write_text(to_json(replace(found, chosen=Start.of("n-grams", {1: 4, 2: 4}))))
    words = ["validate", "--bundle", str(bundle), "--prompts", prompts, "--rounds", "2", "--", *command]
    said = runner(prompts).invoke(main, words)
    assert said.exit_code == 0, said.output
    assert "note: at 1 at once it was not worth it: 0." in said.stdout
    told = json.loads(runner(prompts).invoke(main, [words[0], "--json", *words[1:]]).stdout)
    assert [row["is_worth"] for row in told["rows"]] == [False, False]
    assert [len(row["rounds_gain"]) for row in told["rows"]] == [2, 2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "SPECTUNE_STORE": str(tmp_path / "store.db")}


def begun(words: list[str], environment: dict[str, str]) -> subprocess.Popen[Any]:
    code = "import sys; from spectune.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests that run in the background ignore it
    )


@pytest.mark.parametrize("moments", [3, pytest.param(MOMENTS, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_anywhere_leaves_no_server_and_resumes(
    moments: int, prompts: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    bundle, mark = tmp_path / "out.json", f"{tmp_path}-alias"
    command = (*LLAMA, "-md", "small.gguf", "--alias", mark)
    words = [
        *("tune", "--engine", "llama.cpp", "--prompts", prompts, *LOAD, "--starts", "4"),
        *("--bundle", str(bundle), "--", *command),
    ]
    drawn, loads = random.Random(5), 0
    for moment in range(moments):
        process = begun(words, environment)
        time.sleep(drawn.uniform(0.5, 4.0))
        process.send_signal((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[moment % 3])
        process.wait(30.0)
        wait_for_none(mark)
        if bundle.exists():
            held = read_bundle(bundle)
            assert len(held.trials) >= loads
            loads = len(held.trials)
            if held.chosen is not None:
                bundle.unlink()
                loads = 0
    if not bundle.exists() or read_bundle(bundle).chosen is None:
        assert begun(words, environment).wait(120.0) == 0
    assert read_bundle(bundle).chosen is not None
    wait_for_none(mark)


def test_ctrl_c_leaves_no_server_behind(prompts: str, tmp_path: Path, environment: dict[str, str]) -> None:
    mark = f"{tmp_path}-alias"
    bundle, load = tmp_path / "out.json", ("tune", "--engine", "llama.cpp", "--prompts", prompts, *LOAD)
    for how, more, said in (
        (signal.SIGINT, (), "resume with the same command; what ran is kept in"),
        (signal.SIGTERM, ("--bundle", str(bundle)), f"resume with the same command --bundle {bundle}; what"),
    ):
        process = begun([*load, *more, "--", *LLAMA, "--alias", mark], environment)
        end = time.monotonic() + 120.0  # a busy machine takes long to make a store
        while not left_behind(mark) and time.monotonic() < end:
            time.sleep(0.02)
        while more and not bundle.exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(how)
        assert said in process.communicate(timeout=30.0)[1]
        assert process.returncode == 130
        wait_for_none(mark)
