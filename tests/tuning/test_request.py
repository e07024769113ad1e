"""A profile request that cannot be carried out is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spectune.errors import RequestError
from spectune.profiler.prompts import Prompt
from spectune.tuning.request import Models, ProfileRequest

PROMPTS = [Prompt(text="a"), Prompt(text="b")]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"prompts": PROMPTS[:1]}, "needs at least 2 prompts, got 1"),
        ({"batches": ()}, "batch sizes must be at least 1"),
        ({"batches": (1, 0)}, "batch sizes must be at least 1"),
        ({"batches": (1, 3)}, "batch 3 needs as many prompts, got 2"),
        ({"contexts": (0, 5)}, "at least 1"),
        ({"max_prompt_tokens": 0}, "at least 1"),
        ({"max_new_tokens": 1}, "new tokens at least 2"),
        ({"budget_s": 0.0}, "budget must be positive"),
        ({"budget_s": float("nan")}, "budget must be positive"),
    ],
)
def test_what_cannot_be_profiled_is_refused(wrong: dict[str, Any], complaint: str) -> None:
    asked: dict[str, Any] = {"models": Models(target=Path("t")), "prompts": PROMPTS, "batches": (1,), **wrong}
    with pytest.raises(RequestError, match=complaint):
        ProfileRequest(**asked)


@pytest.mark.parametrize("name", ["a\nb", "tab\t", "\x00", "\x7f", "\x85"])
def test_a_control_character_in_a_name_is_refused(name: str) -> None:
    models = Models(target=Path("t"), drafters={name: Path("d")})
    prompts = [replace(prompt, workload=name) for prompt in PROMPTS]
    for named in ({"workload": name}, {"models": models}, {"prompts": prompts}):
        asked: dict[str, Any] = {"models": Models(target=Path("t")), "prompts": PROMPTS, "batches": (1,), **named}
        with pytest.raises(RequestError) as refusal:
            ProfileRequest(**asked)
        assert str(refusal.value) == f"{name!r} has a control character in it; give a name without one"


@pytest.mark.parametrize("name", ["größe 7B", "例 1", "a/b c"])
def test_any_printed_name_is_taken(name: str) -> None:
    models = Models(target=Path("t"), drafters={name: Path("d")})
    assert ProfileRequest(models=models, prompts=PROMPTS, workload=name, batches=(1,)).workload == name


@pytest.mark.parametrize("name", ["lookup", "target", "small+lookup", "v1.0+fast", ""])
def test_no_drafter_may_be_called_what_the_text_the_target_or_a_stack_is_called(name: str) -> None:
    with pytest.raises(RequestError, match=r"^a drafter cannot be called .*; give it another name$") as refusal:
        Models(target=Path("t"), drafters={"small": Path("s"), name: Path("d")})
    assert repr(name) in str(refusal.value)
