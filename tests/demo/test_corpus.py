"""The split of the standard library, and the prompts cut out of what was held out."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path

import pytest
from demo_corpus import (
    CALIBRATION,
    EVALUATION,
    HELD_OUT_SHARE,
    PROMPT_TOKENS,
    further_calibration_prompts,
    held_out_texts,
    is_held_out,
    shipped_prompts,
    texts_without,
    training_texts,
    write_texts,
)

from spectune.demo.prompts import calibration_prompts, evaluation_prompts
from spectune.demo.story import family_folder, family_models
from spectune.profiler.prompts import read_prompts
from spectune.runtime.models.loading import load_tokenizer

TRAINED_ON = (3, 11)  # whose library the shipped models have read


@cache
def split() -> tuple[list[str], list[str]]:
    return training_texts(), held_out_texts()


@cache
def shipped() -> dict[str, list[str]]:
    return {
        "calibration": [prompt.text for prompt in calibration_prompts()],
        "evaluation": [prompt.text for prompt in evaluation_prompts()],
    }


def whole_lines(prompt: str) -> list[str]:
    """Return a prompt's lines without the last, which is cut off, and those that any source may have."""
    return [line for line in prompt.split("\n")[:-1] if len(line.strip()) > 8]


def test_the_split_depends_on_nothing_but_the_path() -> None:
    names = [f"package/module_{place}.py" for place in range(2000)]
    held_out = [name for name in names if is_held_out(name)]
    assert len(held_out) / 2000 == pytest.approx(HELD_OUT_SHARE, rel=0.3)
    assert held_out == [name for name in names if is_held_out(name)]
    assert [is_held_out(name) for name in ("argparse.py", "traceback.py", "token.py")] == [False, True, True]


def test_no_source_lies_on_both_sides() -> None:
    training, held_out = split()
    assert training and held_out
    shared = set(training) & set(held_out)
    assert all(len(text) < 200 for text in shared)  # empty __init__ files and the like


def test_the_corpus_is_the_same_at_every_call() -> None:
    assert held_out_texts() == split()[1]


def test_a_source_stands_on_the_side_its_path_says() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("argparse.py", "typing.py", "traceback.py", "token.py"):
        assert ((library / name).read_text(encoding="utf-8") in split()[1]) == is_held_out(name)


def test_the_prompts_of_a_set_are_as_many_as_promised_and_all_different() -> None:
    assert {name: len(set(texts)) for name, texts in shipped().items()} == {
        "calibration": CALIBRATION,
        "evaluation": EVALUATION,
    }


def test_calibration_and_evaluation_share_no_text() -> None:
    assert not set(shipped()["calibration"]) & set(shipped()["evaluation"])


@pytest.mark.skipif(sys.version_info[:2] != TRAINED_ON, reason="the models read the library of another Python")
def test_no_evaluation_prompt_lies_in_a_training_text() -> None:
    training = split()[0]
    known = {line for text in training for line in text.split("\n")}
    suspects = [prompt for prompt in shipped()["evaluation"] if known.issuperset(whole_lines(prompt))]
    assert not [prompt for prompt in suspects if any(prompt in text for text in training)]


@pytest.mark.skipif(sys.version_info[:2] != TRAINED_ON, reason="the prompts were cut out of another library")
def test_calibration_and_evaluation_come_from_different_held_out_sources() -> None:
    sources = {
        name: {place for place, source in enumerate(split()[1]) if any(text in source for text in texts)}
        for name, texts in shipped().items()
    }
    assert sources["calibration"] and sources["evaluation"]
    assert not sources["calibration"] & sources["evaluation"]


def test_no_shipped_prompt_stands_in_a_text_that_drafters_learn_from() -> None:
    prompts, texts = shipped_prompts(), texts_without(shipped_prompts())
    assert len(prompts) == CALIBRATION + EVALUATION
    assert not [prompt for prompt in prompts if any(prompt in text for text in texts)]
    dropped = [text for text in split()[0] if text.strip() and text not in set(texts)]
    assert all(any(prompt in text for prompt in prompts) for text in dropped)


def test_written_texts_are_read_as_they_were(tmp_path: Path) -> None:
    texts = ["one\n\ntwo\n", "caf\u00e9 \u2028 x", '{"text": 1}']
    write_texts(tmp_path / "texts.jsonl", texts)
    assert [one.text for one in read_prompts(tmp_path / "texts.jsonl")] == texts


def test_further_prompts_are_cut_from_sources_that_nobody_was_trained_on_nor_is_judged_by() -> None:
    tokenizer = load_tokenizer(str(family_models(family_folder()).target))
    found = [prompt.text for prompt in further_calibration_prompts(12, tokenizer)]
    training, held_out = split()
    assert found == [prompt.text for prompt in further_calibration_prompts(12, tokenizer)] and len(set(found)) == 12
    judged = {text for text in held_out if any(prompt in text for prompt in shipped()["evaluation"])}
    for prompt in found:
        assert any(prompt in text for text in held_out if text not in judged)
        assert not any(prompt in text for text in (*training, *judged))
        assert PROMPT_TOKENS[0] <= len(tokenizer(prompt)["input_ids"]) <= PROMPT_TOKENS[1]
