"""Turns that are asked behind the target's own answers to those before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from spectune.profiler.prompts import Message, Prompt
from spectune.runtime.engine.folder_chats import chats_of_folder
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.conversations import with_longest_answers, with_own_answers
from spectune.tuning.engines.prompts import engine_prompts
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Models, ProfileRequest
from spectune.tuning.turn_by_turn import turn_by_turn

from ..support.simulated_engine import SimulatedEngine
from ..support.tiny_family import save_model

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
TURNS = Prompt(text="main", messages=(Message(role="user", content="main"),), later=("return", "def"), workload="w")
TEXT = Prompt(text="def main")
NEW_TOKENS = 6


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path))  # another test may hold the device
    folder = save_model(tmp_path / "target", layers=1, seed=3)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def asked(target: Path) -> ProfileRequest:
    return ProfileRequest(
        models=Models(target=target), prompts=[TURNS, TEXT], dtype="float32", device="cpu", batches=(1,),
        max_new_tokens=NEW_TOKENS,
    )  # fmt: skip


def test_every_turn_is_a_prompt_behind_all_that_was_said() -> None:
    said: list[list[str]] = []

    def answered(prompts: list[Prompt]) -> list[str]:
        said.append([prompt.text for prompt in prompts])
        return [f"answer {len(said)}"] * len(prompts)

    found = turn_by_turn([TURNS, TEXT], answered)  # type: ignore[arg-type]
    assert [prompt.text for prompt in found] == [
        "main",
        "main\n\nanswer 1\n\nreturn",
        "main\n\nanswer 1\n\nreturn\n\nanswer 2\n\ndef",
        "def main",
    ]
    assert said == [["main"], ["main\n\nanswer 1\n\nreturn"]]
    assert [message.role for message in found[2].messages] == ["user", "assistant", "user", "assistant", "user"]
    assert {prompt.workload for prompt in found[:3]} == {"w"} and not any(prompt.later for prompt in found)


def test_the_answers_are_what_the_target_goes_on_with(target: Path) -> None:
    whole = with_own_answers(asked(target), progress=lambda what, share: None)
    tokenizer = load_tokenizer(str(target))
    first, second, third, text = requests_of(whole, tokenizer)
    assert tokenizer.decode(list(first.prompt)) == "<user>main<assistant>"
    own = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    said = own.generate(torch.tensor([first.prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)[
        0, len(first.prompt) :
    ]
    answer = str(tokenizer.decode(said, skip_special_tokens=True))
    assert whole.prompts[1].messages[1] == Message(role="assistant", content=answer)
    assert third.prompt[: len(second.prompt)] == second.prompt and len(third.prompt) > len(second.prompt) > len(
        first.prompt
    )
    assert tokenizer.decode(list(text.prompt)) == "def main"


def test_a_preview_has_as_many_prompts_and_longer_ones(target: Path) -> None:
    foreseen = with_longest_answers(asked(target)).prompts
    known = with_own_answers(asked(target), progress=lambda what, share: None).prompts
    assert len(foreseen) == len(known) == 4
    assert len(foreseen[2].text) >= len(known[2].text)


def test_an_engine_asks_turn_by_turn_in_the_chat_template(target: Path) -> None:
    engine, tokenizer = SimulatedEngine(right={}, chats=chats_of_folder(target)), load_tokenizer(str(target))
    read = engine_prompts(engine, [TURNS, TEXT], new_tokens=8, most=None)
    written = [str(tokenizer.decode(list(ids))) for ids in read.ids[:3]]
    assert written[0] == "<user>main<assistant>"
    assert written[1].startswith(written[0]) and written[1].endswith("<user>return<assistant>")
    assert written[2].startswith(written[1]) and written[2].endswith("<user>def<assistant>")
    assert read.ids[3] == engine.encode(["def main"])[0]
    assert read.notes == ()


def test_an_engine_says_what_it_cannot_ask_or_read_whole() -> None:
    bare = engine_prompts(SimulatedEngine(right={}), [TURNS, TEXT], new_tokens=8, most=None)
    assert len(bare.ids) == 2
    assert "1 conversations are read as bare text" in bare.notes[0] and "2 later turns" in bare.notes[1]
    short = engine_prompts(SimulatedEngine(right={}, positions=12), [TEXT], new_tokens=8, most=None)
    assert short.notes == ("1 of 1 prompts lose all but their last 4 tokens",)
    assert list(map(len, short.ids)) == [4]
