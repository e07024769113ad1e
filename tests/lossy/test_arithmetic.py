"""The arithmetic task: its texts are right, its parts apart, its training the same twice."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import arithmetic_models
import numpy as np
import pytest
from arithmetic import Problem, arithmetic_tokenizer, exam, problems, training_tokens
from transformers import PreTrainedTokenizerFast

from spectune.profiler.prompts import answers_of, read_prompts

STEP = re.compile(r"(\d+)([+-])(\d+)=(\d+)")


def solved(count: int) -> list[tuple[Problem, str]]:
    rng = np.random.default_rng(5)
    return [(problem, problem.steps(rng)) for problem in islice(problems(3, is_held_out=False), count)]


def test_every_step_of_every_text_is_right_by_python() -> None:
    for problem, text in solved(500):
        steps = STEP.findall(text)
        assert len(steps) >= 2
        assert all(int(c) == (int(a) + int(b) if sign == "+" else int(a) - int(b)) for a, sign, b, c in steps)
        assert text.split()[-1] == problem.answer == str(eval(problem.prompt.rstrip("=")))
        assert steps[-1][-1] == problem.answer


def test_one_problem_is_written_in_many_ways() -> None:
    problem, rng = Problem(first=47, second=38, is_sum=True), np.random.default_rng(0)
    assert len({problem.steps(rng) for _ in range(200)}) == 2 * 3 * 3


def test_no_problem_of_the_exam_is_trained_on() -> None:
    held_out = set(exam(200))
    assert len(held_out) == 200
    assert not held_out & set(islice(problems(0, is_held_out=False), 20_000))


def test_the_tokenizer_gives_texts_back() -> None:
    tokenizer = arithmetic_tokenizer()
    for problem, text in solved(20):
        ids = tokenizer(problem.prompt + text)["input_ids"]
        assert len(ids) == len(problem.prompt + text) and tokenizer.decode(ids) == problem.prompt + text


def test_training_tokens_are_the_texts_as_the_tokenizer_has_them() -> None:
    ids, tokenizer = training_tokens(30, seed=4), arithmetic_tokenizer()
    texts = str(tokenizer.decode(ids.tolist())).split("<end>")
    assert len(texts) == 31 and texts[-1] == "" and all("=" in text for text in texts[:-1])
    assert np.concatenate([[*tokenizer(text)["input_ids"], 0] for text in texts[:-1]]).tolist() == ids.tolist()


def test_training_twice_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic_models, "PROBLEMS", 300)
    losses = [arithmetic_models.train_model("small", tmp_path / name, steps=6) for name in ("one", "two")]
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "one").eos_token_id == 0


def test_what_is_asked_and_what_is_practised_are_different_problems_that_nobody_was_trained_on(tmp_path: Path) -> None:
    for name in arithmetic_models.SHAPES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()  # what is there is not trained again
    arithmetic_models.prepare(tmp_path)
    asked, practised = (read_prompts(tmp_path / f"{name}.jsonl") for name in ("prompts", "practice"))
    kept = {problem.prompt for problem in exam(arithmetic_models.EXAM + arithmetic_models.PRACTICE)}
    texts = [prompt.text for prompt in (*asked, *practised)]
    assert (len(asked), len(practised)) == (arithmetic_models.EXAM, arithmetic_models.PRACTICE)
    assert len(set(texts)) == len(texts) and set(texts) == kept
    assert len(answers_of(practised)) == len(practised)
