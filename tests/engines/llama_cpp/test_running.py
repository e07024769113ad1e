"""llama.cpp runs what it is set to, and counts it; on a tiny GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from transformers import AutoModelForCausalLM

from spectune.engines.llama_cpp.build import missing
from spectune.engines.llama_cpp.running import OwnLlamaCpp
from spectune.engines.measured import EngineLoad, EngineText
from spectune.engines.running import run_engine
from spectune.engines.setting import Setting
from spectune.errors import MeasurementError, ModelError, RequestError
from spectune.planner.engines.mapped_ngrams import whole_ngram_results
from spectune.planner.engines.walk import walk
from spectune.planner.records.recording import Text, recording_of, rows_of
from spectune.planner.strategies.base import results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.profiler.identity import identify_gguf
from spectune.tuning.engines.counters import READERS
from spectune.tuning.engines.inputs import setting_of, way_of

from ...support.engine_traces import followed
from ...support.llama_program import say_ascii
from ...support.tiny_family import save_model

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

TOKENS = 48
PROMPTS = tuple(tuple((start * step + 3) % 120 for step in range(24)) for start in (5, 17, 40))


@cache
def engine() -> OwnLlamaCpp:
    root = Path(mkdtemp())
    for name, layers, seed in (("target", 2, 1), ("twin", 2, 1), ("other", 1, 7)):
        say_ascii(save_model(root / name, layers=layers, seed=seed))
    drafters = {name: root / name for name in ("twin", "other")}
    found = run_engine("llama.cpp", root / "target", drafters, dtype="float32", threads=1, folder=root)
    assert isinstance(found, OwnLlamaCpp)
    return found


def chain(name: str, length: int) -> Setting:
    drafter = next(one for one in engine().drafters if one.name == name)
    return engine().chain(drafter, length)


def decoded(setting: Setting | None, *, slots: int = 1) -> list[EngineText]:
    """Return all prompts' texts, whose counts must be the server's own."""
    load = EngineLoad(concurrency=slots, capacity=128)
    with engine().started(setting, load) as running:
        before = running.counters()
        texts = [one for at in range(0, 3, slots) for one in running.decode(PROMPTS[at : at + slots], TOKENS)]
        counted = running.counters().since(before)
    assert counted.drafted == sum(text.drafted for text in texts)
    assert counted.accepted == sum(text.accepted for text in texts)
    assert counted.accepted == sum(counted.by_position) or not engine().facts.sets_acceptance  # an older one
    return texts


@cache
def plain() -> tuple[tuple[int, ...], ...]:
    return tuple(text.tokens for text in decoded(None))


WAYS = {
    "twin": lambda: chain("twin", 3),
    "other": lambda: chain("other", 3),
    "n-grams": lambda: engine().ngrams()[0],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("slots", [1, 3])
def test_whatever_drafts_the_text_is_the_target_s(way: str, slots: int) -> None:
    assert tuple(text.tokens for text in decoded(WAYS[way](), slots=slots)) == plain()


def test_a_drafter_that_is_the_target_has_every_draft_accepted() -> None:
    for text in decoded(chain("twin", 3)):
        assert text.accepted == text.drafted and text.rounds == -(-(TOKENS - 1) // 4)


def test_plain_decoding_drafts_nothing() -> None:
    assert {(text.drafted, text.rounds) for text in decoded(None)} == {(0, TOKENS - 1)}


def texts() -> list[Text]:
    return [Text(prompt=prompt, continuation=tokens) for prompt, tokens in zip(PROMPTS, plain(), strict=True)]


def test_the_target_itself_would_draft_its_own_text() -> None:
    twin, other = engine().drafters
    told = engine().next_tokens(twin, texts())
    assert told == [tokens[1:] for tokens in plain()]
    assert engine().next_tokens(other, texts()) != told


@pytest.mark.parametrize("name", ["twin", "other"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_chains_of_any_length_follow_from_the_drafter_s_own_tokens(name: str, length: int) -> None:
    drafter = next(one for one in engine().drafters if one.name == name)
    recording = recording_of(followed(engine(), drafter, texts()))
    found = walk(results_of(ChainPolicy(length=length), recording), recording.rows)
    ran = decoded(chain(name, length))
    assert found.rounds.tolist() == [text.rounds for text in ran]
    assert found.drafted.tolist() == [text.drafted for text in ran]


@cache
def circling() -> OwnLlamaCpp:
    """Return an engine whose target decides each token by the one before: its texts are loops of several lengths."""
    root = Path(mkdtemp())
    save_model(root / "target", layers=1, seed=3)
    model = AutoModelForCausalLM.from_pretrained(str(root / "target"), dtype=torch.float32)
    torch.nn.init.zeros_(model.model.layers[0].self_attn.o_proj.weight)
    model.save_pretrained(root / "target")
    say_ascii(root / "target")
    found = run_engine("llama.cpp", root / "target", {}, dtype="float32", threads=1, folder=root)
    assert isinstance(found, OwnLlamaCpp)
    return found


@pytest.mark.parametrize(("size", "length"), [(2, 4), (2, 8), (3, 8), (2, 16)])
@pytest.mark.parametrize("texts_of", [engine, circling])
def test_its_search_for_n_grams_walks_as_ours_does(texts_of: Callable[[], OwnLlamaCpp], size: int, length: int) -> None:
    setting = setting_of(texts_of(), (LookupPolicy(length=length, max_ngram=size, min_ngram=size), "lookup"))
    ran: list[list[EngineText]] = []
    for one in (None, setting):
        with texts_of().started(one, EngineLoad(concurrency=1, capacity=128)) as running:
            ran.append([running.decode([prompt], TOKENS)[0] for prompt in PROMPTS])
    own = [Text(prompt=prompt, continuation=text.tokens) for prompt, text in zip(PROMPTS, ran[0], strict=True)]
    ((_, results),) = whole_ngram_results(own, size, [length])
    found = walk(results, rows_of(own))
    assert found.rounds.tolist() == [text.rounds for text in ran[1]]
    assert found.drafted.tolist() == [text.drafted for text in ran[1]]


def test_acceptance_set_by_hand_is_read_from_its_metrics() -> None:
    if not engine().facts.sets_acceptance:
        pytest.skip(f"llama.cpp {engine().facts.version} cannot set acceptance")
    wanted = (0.9, 0.5, 0.2)
    load = EngineLoad(concurrency=1, capacity=1024, synthetic=wanted)
    with engine().started(chain("other", 3), load) as running:
        for prompt in PROMPTS:
            running.decode([prompt], 700)
        (read,) = READERS["llama-metrics"](running.server.address.get("/metrics").text).acceptance
    assert read.by_position == pytest.approx(wanted, abs=0.06)  # of about 800 rounds


def test_several_settings_are_open_at_once() -> None:
    load = EngineLoad(concurrency=1, capacity=128)
    with engine().started(chain("twin", 1), load) as first, engine().started(chain("twin", 5), load) as second:
        for running, length in ((first, 1), (second, 5), (first, 1)):
            (text,) = running.decode(PROMPTS[:1], TOKENS)
            assert text.rounds == -(-(TOKENS - 1) // (length + 1))


def test_a_text_without_room_is_refused_with_what_the_server_says() -> None:
    with engine().started(None, EngineLoad(concurrency=1, capacity=64)) as running:
        with pytest.raises(MeasurementError, match=r"status 400: .*exceed"):
            running.decode([(5, 17) * 1000], 4)
        assert running.decode(PROMPTS[:1], 4)


def test_it_says_what_it_is() -> None:
    facts = engine().facts
    assert facts.regime == f"engine:llama.cpp-{facts.version}" and facts.version.startswith("b")
    assert facts.most_open == 1 and facts.most_concurrency is None


def test_its_settings_are_ways_of_ours() -> None:
    for setting in (*engine().ngrams(), chain("other", 4)):
        way = way_of(engine(), setting)
        assert way is not None and setting_of(engine(), way) == setting


def test_a_setting_it_does_not_know_is_refused() -> None:
    unknown = Setting(method="telepathy", drafter=None, knobs=(), length=1)
    load = EngineLoad(concurrency=1, capacity=64)
    with pytest.raises(MeasurementError, match="telepathy"), engine().started(unknown, load):
        pass


def test_a_gguf_file_is_taken_as_it_is_and_named_by_its_bytes(tmp_path: Path) -> None:
    file = engine().target
    again = run_engine("llama.cpp", file, {"twin": file}, dtype="float32", threads=1, folder=tmp_path)
    assert again.drafters[0].path == str(file) and not list(tmp_path.iterdir())
    assert again.encode(["def main"]) == engine().encode(["def main"])
    known = identify_gguf(file, "target")
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(file.read_bytes())
    assert known.key == identify_gguf(copy).key and known.parameters > 1


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no GGUF file and no model folder"):
        run_engine("llama.cpp", tmp_path / "none", {}, dtype="float32", threads=1, folder=tmp_path)
    with pytest.raises(RequestError, match="int3"):
        run_engine("llama.cpp", engine().target, {}, dtype="int3", threads=1, folder=tmp_path)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"no model")
    with pytest.raises(ModelError, match="no GGUF file"):
        identify_gguf(other)
    broken = run_engine("llama.cpp", other, {}, dtype="float32", threads=1, folder=tmp_path)
    load = EngineLoad(concurrency=1, capacity=64)
    with pytest.raises(ModelError, match="no GGUF file"), broken.started(None, load):
        pass
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(engine().target.read_bytes()[:-10_000])
    unloadable = run_engine("llama.cpp", cut, {}, dtype="float32", threads=1, folder=tmp_path)
    with pytest.raises(ModelError, match="finish the download"), unloadable.started(None, load):
        pass
