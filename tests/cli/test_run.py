"""`spectune run`: what is sampled, where it ends, and what it says about that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import LlamaForCausalLM

from spectune.cli import main
from spectune.runtime.models.loading import load_tokenizer

from ..support.tiny_family import byte_tokenizer, save_model

PROMPT = "def main("


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("run") / "target", layers=1, seed=1)


def typed(target: Path, *options: str) -> Result:
    arguments = ["-q", "run", "--target", str(target), "--prompt", PROMPT, "--plan", "none", "--dtype", "float32"]
    return CliRunner().invoke(main, [*arguments, "--max-new-tokens", "24", *options])


def facts(target: Path, *options: str) -> Any:
    result = typed(target, *options, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_backend_is_named(target: Path) -> None:
    assert facts(target)["backend"] == "cpu"


def test_a_repetition_penalty_gives_what_transformers_generates_with_it(target: Path) -> None:
    model, tokenizer = LlamaForCausalLM.from_pretrained(target).eval(), byte_tokenizer("def main(): return 1")
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    new = model.generate(ids, max_new_tokens=24, do_sample=False, repetition_penalty=1.5)[0, ids.shape[1] :]
    assert facts(target, "--repetition-penalty", "1.5")["tokens"] == new.tolist() != facts(target)["tokens"]


@pytest.mark.parametrize("prompt", [" ", "\n", " \n\t "])
def test_a_prompt_of_spaces_alone_is_no_empty_one(target: Path, prompt: str) -> None:
    model, tokenizer = LlamaForCausalLM.from_pretrained(target).eval(), load_tokenizer(str(target))
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    new = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
    assert facts(target, "--prompt", prompt)["tokens"] == new.tolist()


def test_a_chat_goes_through_the_template_of_the_target(tmp_path: Path) -> None:
    place = save_model(tmp_path / "target", layers=1, seed=1)
    refused = typed(place, "--chat")
    assert refused.exit_code == 1 and "has no chat template; give the prompt as text" in refused.stderr
    tokenizer = load_tokenizer(str(place))
    tokenizer.chat_template = "{{ messages[0].role }} {{ messages[0].content }}"
    tokenizer.save_pretrained(place)
    own = facts(place, "--prompt", f"user {PROMPT}")
    assert facts(place, "--chat")["tokens"] == own["tokens"]
    assert typed(place, "--chat").stdout == own["text"] + "\n"


def test_half_a_character_is_refused_in_one_line(target: Path) -> None:
    result = typed(target, "--prompt", "a\udcff")
    assert result.exit_code == 1 and "half a character, \\udcff alone" in result.stderr


def test_one_of_the_best_is_the_best_at_any_temperature(target: Path) -> None:
    assert facts(target, "--temperature", "3", "--top-k", "1")["tokens"] == facts(target)["tokens"]


@pytest.mark.parametrize("masks", [("--top-k", "2"), ("--top-p", "0.4"), ("--min-p", "0.9")])
def test_a_mask_changes_what_is_sampled(target: Path, masks: tuple[str, str]) -> None:
    sampled = ("--temperature", "1.5", "--seed", "3")
    assert facts(target, *sampled, *masks)["tokens"] != facts(target, *sampled)["tokens"]


def test_a_text_ends_before_the_first_stop_string(target: Path) -> None:
    text = facts(target)["text"]
    place = next(
        p for p in range(5, len(text) - 2) if text.index(text[p : p + 2]) == p and "\ufffd" not in text[p : p + 2]
    )
    stops = ("--stop", "never said", "--stop", text[place : place + 2])
    done = facts(target, *stops)
    assert (done["text"], done["finish_reason"]) == (text[:place], "stop")
    assert typed(target, *stops).stdout == text[:place] + "\n"


def test_behind_the_text_it_is_said_in_how_many_rounds_it_came(target: Path) -> None:
    asked = ["run", "--target", str(target), "--prompt", PROMPT, "--plan", "none", "--dtype", "float32"]
    for tokens, told in ((5, "5 tokens in 4 rounds, 1.00 a round behind the first: about "), (1, "")):
        result = CliRunner().invoke(main, [*asked, "--max-new-tokens", str(tokens)])
        assert result.exit_code == 0 and told in result.stderr, result.output
        assert ("rounds" in result.stderr) is ("tokens/s" in result.stderr) is bool(told)


def test_a_text_that_reaches_the_limit_says_so(target: Path) -> None:
    done = facts(target, "--max-new-tokens", "5")
    assert (len(done["tokens"]), done["finish_reason"]) == (5, "length")


@pytest.mark.parametrize(
    "wrong", [("--top-k", "-1"), ("--top-p", "0"), ("--top-p", "1.1"), ("--min-p", "2"), ("--repetition-penalty", "0")]
)
def test_a_setting_out_of_range_is_a_usage_error(target: Path, wrong: tuple[str, str]) -> None:
    assert typed(target, *wrong).exit_code == 2


def test_an_empty_stop_string_is_refused_in_one_line(target: Path) -> None:
    result = typed(target, "--stop", "")
    assert result.exit_code == 1 and "a stop string is empty" in result.stderr


def test_a_drafter_that_no_plan_drafts_by_is_said_not_to_be_loaded(target: Path, tmp_path: Path) -> None:
    asked = ["run", "--target", str(target), "--prompt", PROMPT, "--dtype", "float32", "--max-new-tokens", "2"]
    result = CliRunner().invoke(main, [*asked, "--store", str(tmp_path / "none.db"), "--drafter", "smal=nowhere"])
    assert result.exit_code == 0, result.output
    assert "--drafter smal is not loaded: without a plan nothing drafts" in result.stderr
