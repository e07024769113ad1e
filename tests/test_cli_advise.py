"""`spectune advise`: counters and token times in, a length out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main

from .test_tuning_engine_counters import bench, metrics

KEPT = [3] * 50 + [1] * 30 + [0] * 20  # of 3 drafted tokens: 0.8, 0.5 and 0.5 by position


def advised(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "counters").write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["advise", str(folder / "counters"), *arguments])


def test_counters_and_two_times_tell_the_length_to_draft(tmp_path: Path) -> None:
    result = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--itl", "0=7.0", "--itl", "3=6.0", "--json")
    facts = json.loads(result.output)
    assert [one["tokens_per_round"] for one in facts["lengths"]] == pytest.approx([1.0, 1.8, 2.3, 2.8])
    assert facts["best"]["length"] == 1 and facts["best"]["itl_ms"] == pytest.approx((7.0 + (16.8 - 7.0) / 3) / 1.8)
    assert facts["surest"]["length"] == 3 and not facts["is_longest"]


def test_people_are_told_what_to_set_and_what_is_not_sure(tmp_path: Path) -> None:
    said = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--itl", "0=7.0", "--itl", "3=6.0").output
    assert "draft 1: 5.70 ms a token, 1.23 times plain decoding" in said
    assert (
        "not sure: if the first drafted token costs as much as all, 3 is the fastest; measure --itl 1=MS, too" in said
    )
    said = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--itl", "0=4.0", "--itl", "3=5.0").output
    assert "do not speculate" in said


def test_a_benchmark_s_own_times_count_beside_those_that_are_given(tmp_path: Path) -> None:
    text = bench((1, 1, 1, 2, 1.8), (1, 2, 1, 3, 2.4), (4, 1, 1, 2, 1.75))  # steps of 20 ms
    named = ("--format", "sglang-bench", "--itl", "0=15", "--json")
    facts = json.loads(advised(tmp_path, text, *named, "--batch", "1").output)
    assert [one["itl_ms"] for one in facts["lengths"]] == pytest.approx([15.0, 20.0 / 1.8, 20.0 / 2.4])
    several = advised(tmp_path, text, *named)
    assert several.exit_code == 1 and "of several loads (batch 1, batch 4); name one with --batch" in several.stderr
    absent = advised(tmp_path, text, *named, "--batch", "2")
    assert absent.exit_code == 1 and "of batch 2; it is of batch 1, batch 4" in absent.stderr


@pytest.mark.parametrize("wrong", ["3", "x=1", "3=", "0=7.0"])
def test_a_time_that_does_not_read_is_refused(wrong: str, tmp_path: Path) -> None:
    result = advised(tmp_path, metrics(KEPT, "vllm:", "_total"), "--itl", "0=7.1", "--itl", wrong)
    assert result.exit_code == 2 and "is no LENGTH=MS of a length of its own" in result.stderr
