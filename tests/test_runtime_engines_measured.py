"""Engines that run here: the target's own text whatever drafts, and counters that add up to it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from transformers import AutoModelForCausalLM

from spectune.errors import MeasurementError, ModelError, RequestError
from spectune.planner.policies import ConfidentChainPolicy
from spectune.planner.replay.recorded import Text
from spectune.planner.text.lookup import find_continuation
from spectune.runtime.engines.measured import EngineText, Load, MeasuredEngine
from spectune.runtime.engines.round_counts import RoundCounts
from spectune.runtime.engines.running import run_engine
from spectune.runtime.engines.setting import Setting
from spectune.runtime.engines.transformers_ import Transformers

from .tiny_family import save_model

TOKENS = 40
LOAD = Load(concurrency=1, capacity=128)
WHEELS = {"openvino": ("openvino", "openvino_genai", "openvino_tokenizers"), "transformers": ()}
each = pytest.mark.parametrize("name", WHEELS)
Way = Callable[[MeasuredEngine], Setting | None]
WAYS: dict[str, Way] = {
    "plain": lambda _: None,
    "chain of 1": lambda engine: engine.chain(engine.drafters[0], 1),
    "chain of 3": lambda engine: engine.chain(engine.drafters[0], 3),
    "its own text": lambda engine: engine.ngrams()[1],
}


@cache
def folder() -> Path:
    """Return a folder with a target, the same again as drafter, another model, and one that goes round in circles."""
    found = Path(mkdtemp())
    for name, layers, seed in (("target", 2, 1), ("twin", 2, 1), ("other", 1, 7), ("circling", 1, 3)):
        save_model(found / name, layers=layers, seed=seed)
    model = AutoModelForCausalLM.from_pretrained(str(found / "circling"), dtype=torch.float32)
    torch.nn.init.zeros_(model.model.layers[0].self_attn.o_proj.weight)  # so a token decides the next one alone
    model.save_pretrained(found / "circling")
    return found


@cache
def engine(name: str, drafter: str = "twin", target: str = "target") -> MeasuredEngine:
    absent = [wheel for wheel in WHEELS[name] if importlib.util.find_spec(wheel) is None]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}: pip install 'spectune[openvino]'")
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
    assert (counted.drafted, counted.accepted) == (text.drafted, text.accepted)
    assert sum(counted.by_position) == text.accepted
    return text


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
    assert text.accepted == text.drafted
    assert set(text.kept[:-1]) == {length} and text.rounds == -(-(TOKENS - 1) // (length + 1))


@each
def test_what_a_drafter_would_draft_along_a_text_is_told(name: str) -> None:
    text = Text(prompt=prompt(), continuation=expected())
    for drafter, is_twin in (("twin", True), ("other", False)):
        found = engine(name, drafter)
        ((*told,),) = found.next_tokens(found.drafters[0], [text])
        assert len(told) == text.positions
        assert (tuple(told) == expected()[1:]) == is_twin


@each
def test_plain_decoding_drafts_nothing(name: str) -> None:
    assert (decoded(name, "plain").drafted, decoded(name, "plain").rounds) == (0, TOKENS - 1)


@each
def test_a_lookup_copies_behind_the_first_occurrence_round_for_round(name: str) -> None:
    """Walk the known text with the planner's own search: as many rounds, each with as many kept."""
    found = engine(name, target="circling")
    setting = found.ngrams()[1]
    (longest,) = (int(value) for value in dict(setting.knobs).values())
    with found.started(setting, LOAD) as running:
        (text,) = running.decode([prompt()], 2 * TOKENS)
    kept, drafted, at = list[int](), 0, 1
    while at < 2 * TOKENS:
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
            assert text.kept[0] == length


@each
def test_what_it_cannot_do_is_refused(name: str) -> None:
    found = engine(name)
    by_hand = Load(concurrency=1, capacity=64, synthetic=(0.5,))
    with pytest.raises(MeasurementError, match="by hand"), found.started(None, by_hand):
        pass
    with (
        pytest.raises(MeasurementError, match=r"asked for 2|not at 2"),
        found.started(None, Load(concurrency=2, capacity=64)),
    ):
        pass


@each
def test_it_says_what_it_is(name: str) -> None:
    facts = engine(name).facts
    assert facts.name == name and facts.regime == f"engine:{name}-{facts.version}"
    assert (facts.most_concurrency, facts.sets_acceptance) == (1, False)


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


def test_a_folder_of_openvino_is_taken_as_it_is() -> None:
    found = engine("openvino")
    path = Path(found.drafters[0].path)
    assert (path / "openvino_model.xml").is_file()
    again = run_engine("openvino", path, {}, dtype="float32", threads=1, folder=folder() / "elsewhere")
    assert again.encode(["def"]) == found.encode(["def"]) == engine("transformers").encode(["def"])
    assert not (folder() / "elsewhere").exists()


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
