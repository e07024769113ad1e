"""vLLM over HTTP: what its server is asked and what its answers mean, by a scripted server."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.engines.answers import RequestResult
from spectune.engines.counters import Counts
from spectune.engines.measured import EngineLoad, EngineText
from spectune.engines.own_server import texts_of
from spectune.engines.running import run_engine
from spectune.engines.setting import Setting
from spectune.engines.vllm import running
from spectune.engines.vllm.running import OwnVLLM
from spectune.errors import RequestError
from spectune.planner.engines.walk import walk
from spectune.planner.records.recording import Text, recording_of
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.cpu import allowed_cores
from spectune.profiler.prompt import Message, conversation
from spectune.runtime.engine.prompts import chat_ids
from spectune.runtime.models.loading import load_tokenizer

from ...support.engine_traces import followed
from ...support.fake_openai_server import said_behind
from ...support.openai_program import FAKE
from ...support.tiny_family import save_model, save_vocabulary

TOKENS = 40
PROMPTS = ((5, 17, 40), (9, 3, 8, 61, 20))
LOAD = EngineLoad(concurrency=2, capacity=128)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vllm")
    for name in ("target", "small"):
        save_model(root / name, layers=1, seed=1)
    return root


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PROGRAM", (sys.executable, "-E", "-S", str(FAKE)))
    monkeypatch.setattr(running, "missing", lambda: None)
    monkeypatch.setattr(running, "installed", lambda: "0.32.0")


def engine(folder: Path) -> OwnVLLM:
    drafters = {"small": folder / "small"}
    found = run_engine("vllm", folder / "target", drafters, dtype="float32", threads=1, folder=folder)
    assert isinstance(found, OwnVLLM)
    return found


def decoded(found: OwnVLLM, setting: Setting | None) -> tuple[EngineText, ...]:
    """Return the texts of both prompts at once, whose counts must be the server's."""
    with found.started(setting, LOAD) as running:
        before = running.counters()
        texts = running.decode(PROMPTS, TOKENS)
        counted = running.counters().since(before)
    assert counted.accepted == sum(text.accepted for text in texts)
    assert counted.drafted == sum(text.drafted for text in texts)
    return texts


def test_a_target_without_a_tokenizer_file_is_read_by_transformers(tmp_path: Path) -> None:
    save_model(tmp_path / "small", layers=1, seed=1)
    target = save_vocabulary(save_model(tmp_path / "target", layers=1, seed=1), "{{ messages[0].content }}")
    tokenizer, found = load_tokenizer(str(target)), engine(tmp_path)
    assert found.encode(["def main"]) == [tuple(tokenizer.encode("def main"))]
    asked = conversation([Message(role="user", content="main")])
    assert found.chats is not None and found.chats.encode([asked]) == [chat_ids(tokenizer, asked.messages)]


def test_texts_are_the_target_s_and_chains_follow_from_the_drafter_s_own_tokens(folder: Path) -> None:
    found = engine(folder)
    plain = decoded(found, None)
    assert [list(text.tokens) for text in plain] == [said_behind(list(prompt), TOKENS) for prompt in PROMPTS]
    assert {(text.drafted, text.rounds) for text in plain} == {(0, TOKENS - 1)}
    texts = [Text(prompt=prompt, continuation=text.tokens) for prompt, text in zip(PROMPTS, plain, strict=True)]
    recording = recording_of(followed(found, found.drafters[0], texts))
    known = walk(results_of(ChainPolicy(length=3), recording), recording.rows)
    ran = decoded(found, found.chain(found.drafters[0], 3))
    assert known.rounds.tolist() == [text.rounds for text in ran]
    assert [text.tokens for text in ran] == [text.tokens for text in plain]


def test_a_server_is_started_with_room_for_its_load_and_the_setting_of_an_export(folder: Path) -> None:
    found = engine(folder)
    words = found.command(found.target, found.chain(found.drafters[0], 3), EngineLoad(concurrency=4, capacity=96))
    told = dict(pairwise(words))
    assert told["--max-num-seqs"] == "4" and told["--max-model-len"] == "96" and told["--dtype"] == "float32"
    assert '"num_speculative_tokens": 3' in told["--speculative-config"]
    assert words[0] == "env" and f"VLLM_CPU_OMP_THREADS_BIND={min(allowed_cores())}" in words
    assert told["--generation-config"] == "vllm" and told["--tokenizer"] == str(folder / "target")


def test_rounds_that_came_in_one_event_are_not_taken_for_accepted_tokens() -> None:
    """Two rounds of two tokens each in one event hold two accepted tokens, not three."""
    one = RequestResult(prompt=0, ttft_ms=1.0, e2e_ms=9.0, tokens=7, events=((1,), (2, 3, 4, 5), (6, 7)))
    counts = Counts(drafts=3, drafted=6, accepted=3)
    (text,) = texts_of([one], counts, drafts=True)
    assert (text.accepted, text.rounds, text.drafted, text.ms) == (3, 3, 6, 8.0)
    past_the_end = Counts(drafts=3, drafted=6, accepted=4)  # one token more than the text holds
    assert texts_of([one], past_the_end, drafts=True)[0].rounds == 3


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(RequestError, match=r"no model folder at .*nowhere"):
        run_engine("vllm", folder / "nowhere", {}, dtype="float32", threads=1, folder=folder)


def test_profile_plan_and_validate_as_they_are_typed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))  # another test may hold the device
    monkeypatch.setattr("spectune.tuning.engines.turns.SETTLE_S", 0.0)
    (tmp_path / "prompts.txt").write_text("\n\n".join(f"def main(): return {number}" for number in range(4)))

    def typed(command: str, *words: str) -> str:
        common = ("--engine", "vllm", "--target", str(folder / "target"), "--store", str(tmp_path / "s.db"))
        done = CliRunner().invoke(main, [command, *common, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    texts = ("--prompts", str(tmp_path / "prompts.txt"), "--max-new-tokens", "24")
    told = typed("profile", "--drafter", f"small={folder / 'small'}", "--batch", "1", "--dtype", "float32", *texts)
    assert "rounds of vllm 0.32.0" in told
    assert '"method": "draft_model"' in typed("plan")
    assert "the plan's setting took effect" in typed("validate", *texts)
