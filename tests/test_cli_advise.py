"""`spectune advise`: counters and token times in, a length out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main

from .test_tuning_engine_counters import metrics

KEPT = [3] * 50 + [1] * 30 + [0] * 20  # of 3 drafted tokens and more: 0.8, 0.5 and 0.5 by position


def advised(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "counters").write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["advise", str(folder / "counters"), *arguments])


def test_counters_and_two_times_tell_the_length_to_draft(tmp_path: Path) -> None:
    result = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=7.0", "--tpot", "3=6.0", "--json")
    facts = json.loads(result.output)
    assert [one["tokens_per_round"] for one in facts["lengths"]] == pytest.approx([1.0, 1.8, 2.3, 2.8])
    assert facts["best"]["length"] == 1
    assert facts["best"]["tpot_ms"] == pytest.approx((7.0 + (16.8 - 7.0) / 3) / 1.8)
    assert facts["open"] == [1, 2] and not facts["is_longest"]


def test_people_are_told_what_to_set_and_what_is_not_sure(tmp_path: Path) -> None:
    said = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=7.0", "--tpot", "3=6.0").output
    assert "draft 1: 5.70 ms a token, 1.23 times plain decoding" in said
    assert "that is guessed between lengths that were measured; to be sure run it and add --tpot 1=MS" in said
    assert "not measured, and may be faster still: 2" in said
    assert "note: the file does not tell rounds that drafted nothing" in said
    said = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=4.0", "--tpot", "3=5.0").output
    assert "do not speculate" in said


@pytest.mark.parametrize(
    ("file_format", "prefix", "generated"),
    [("vllm-metrics", "vllm:", "generation_tokens_total"), ("llama-metrics", "llamacpp:", "tokens_predicted_total")],
)
def test_rounds_that_drafted_nothing_are_among_those_that_times_are_of(
    file_format: str, prefix: str, generated: str, tmp_path: Path
) -> None:
    rounds = 2 * len(KEPT)  # half of which drafted nothing
    text = metrics(KEPT, prefix, "_total") + f'{prefix}{generated}{{model_name="m"}} {rounds + sum(KEPT)}\n'
    times = {length: 7.0 / (1.0 + sum((0.4, 0.25, 0.25)[:length])) for length in range(4)}  # rounds of 7 ms
    named = [word for length, time in times.items() for word in ("--tpot", f"{length}={time}")]
    result = advised(tmp_path, text, "--format", file_format, *named, "--json")
    facts = json.loads(result.output)
    assert [one["tokens_per_round"] for one in facts["lengths"]] == pytest.approx([1.0, 1.4, 1.65, 1.9])
    assert facts["best"]["length"] == 3
    assert "50 % of the rounds drafted anything; acceptance is told of all of them" in facts["notes"]


@pytest.mark.parametrize("wrong", ["3", "x=1", "3=", "0=7.0"])
def test_a_time_that_does_not_read_is_refused(wrong: str, tmp_path: Path) -> None:
    result = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--tpot", "0=7.1", "--tpot", wrong)
    assert result.exit_code == 2 and "is no LENGTH=MS of a length of its own" in result.stderr
