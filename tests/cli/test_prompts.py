"""What commands say of the prompts they measure on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
import pytest

from spectune.cli.prompts import named_prompts, tell_cut
from spectune.cli.report import Settings
from spectune.profiler.prompts import Message, Prompt
from spectune.runtime.models.loading import load_tokenizer
from spectune.tuning.prompts import positions_of
from spectune.tuning.request import Models, ProfileRequest

from ..support.tiny_family import save_model


def asked(target: Path, prompts: list[Prompt], most: int | None = None) -> ProfileRequest:
    return ProfileRequest(
        models=Models(target=target), prompts=prompts, batches=(1,), max_new_tokens=16, max_prompt_tokens=most
    )


@pytest.mark.parametrize("kind", ["calibration", "evaluation"])
def test_prompts_that_nobody_named_are_said_to_be_the_demo_s(
    kind: Literal["calibration", "evaluation"], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named_prompts(Settings(), None, kind)
    assert f"the demo's {kind} prompts" in capsys.readouterr().err
    (tmp_path / "own.txt").write_text("def f(x):")
    assert [prompt.text for prompt in named_prompts(Settings(), tmp_path / "own.txt", kind)] == ["def f(x):"]
    assert not capsys.readouterr().err


def test_conversations_whose_turns_nothing_marks_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = save_model(tmp_path / "target", layers=1, seed=1)
    prompts = [Prompt(text="xx", messages=(Message(role="user", content="xx"),)), Prompt(text="xx")]
    tell_cut(Settings(), asked(target, prompts))
    assert "has no chat template: 1 conversations are read as bare text" in capsys.readouterr().err
    tokenizer = load_tokenizer(str(target))
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(target)
    tell_cut(Settings(), asked(target, prompts))
    assert not capsys.readouterr().err


def test_prompts_that_lose_their_beginning_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = save_model(tmp_path / "target", layers=1, seed=1)
    prompts = [Prompt(text="x" * tokens) for tokens in (4, 8, 9, 20)]
    tell_cut(Settings(), asked(target, prompts, most=8))
    said = "2 of 4 prompts lose all but their last 8 tokens; the limit is --max-prompt-tokens"
    assert said in capsys.readouterr().err
    tell_cut(Settings(), asked(target, prompts, most=20))
    assert not capsys.readouterr().err


def test_whole_prompts_are_read_unless_the_model_has_no_positions_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = save_model(tmp_path / "target", layers=1, seed=1)
    positions = positions_of(target)
    prompts = [Prompt(text="x" * tokens) for tokens in (4, positions - 16, positions - 15)]
    tell_cut(Settings(), asked(target, prompts))
    said = f"1 of 3 prompts lose all but their last {positions - 16} tokens; the limit is the model's {positions} pos"
    assert said in capsys.readouterr().err


def test_a_sample_is_drawn_from_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("a\n\nb\n\nc")
    drawn = named_prompts(Settings(), tmp_path / "own.txt", "calibration", sample=2, seed=3)
    assert len(drawn) == 2
    with pytest.raises(click.UsageError, match="draws from --prompts FILE"):
        named_prompts(Settings(), None, "calibration", sample=2)
