"""What ends a prompt: what was asked for, positions, or memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spectune.profiler.configuration import read_architecture
from spectune.profiler.prompts import Prompt
from spectune.tuning import prompt_room as module
from spectune.tuning.prompt_room import PromptRoom, positions_of, prompt_room
from spectune.tuning.prompts import requests_of
from spectune.tuning.request import Models, ProfileRequest

from ..support.tiny_family import byte_tokenizer, save_model

NEW_TOKENS = 9


@pytest.fixture
def request_(tmp_path: Path) -> ProfileRequest:
    target = save_model(tmp_path / "target", layers=2, seed=1)
    prompts = [Prompt(text=str(place)) for place in range(4)]
    return ProfileRequest(
        models=Models(target=target), prompts=prompts, device="cpu", dtype="float32", batches=(1, 4),
        max_new_tokens=NEW_TOKENS,
    )  # fmt: skip


def test_a_prompt_is_whole_as_long_as_the_model_has_positions(request_: ProfileRequest) -> None:
    positions = positions_of(request_.models.target)
    assert prompt_room(request_).tokens == positions - NEW_TOKENS
    text = Prompt(text="x" * 2 * positions)
    long = replace(request_, prompts=[Prompt(text="xyz"), text], batches=(1,))
    short, cut = requests_of(long, byte_tokenizer("def main(): return 1"))
    assert (len(short.prompt), len(cut.prompt)) == (3, positions - NEW_TOKENS)


def test_what_was_asked_for_goes_before(request_: ProfileRequest) -> None:
    asked = PromptRoom(tokens=5, limit="--max-prompt-tokens")
    assert prompt_room(replace(request_, max_prompt_tokens=5)) == asked


def test_memory_ends_prompts_of_the_largest_batch(request_: ProfileRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = read_architecture(request_.models.target)
    each = 4 * architecture.kv_bytes_per_token("float32")  # of a token in every sequence

    def room(tokens: int) -> PromptRoom:
        free = architecture.weight_bytes("float32") + 2 * tokens * each
        monkeypatch.setattr(module, "available_bytes", lambda: free)
        return prompt_room(request_)

    assert room(64) == PromptRoom(tokens=64 - NEW_TOKENS, limit="the memory for 4 texts at once")
    assert room(100).tokens == room(64).tokens  # a power of two, so that a later run cuts alike
    assert room(1).tokens == 1
    assert "positions" in room(2**20).limit


def test_a_target_that_is_not_there_sets_no_limit(request_: ProfileRequest, tmp_path: Path) -> None:
    assert prompt_room(replace(request_, models=Models(target=tmp_path / "none"))).tokens > 2**30
