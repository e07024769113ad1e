"""Lengths of separate runs come to the nearest acceptance by position that there can be, or are refused."""

from __future__ import annotations

import json
import random
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from spectune.errors import RequestError
from spectune.tuning.engines.counters import CountedAcceptance, read_counters
from spectune.tuning.engines.separate_runs import MOST_MOVED, nearest_falling


def chains(*lengths: float, batch: int = 1) -> str:
    """Return lines of chains of 1, 2, ... steps, each of a server of its own, by the tokens of their rounds."""
    rows = [
        {"batch_size": batch, "steps": steps, "topk": 1, "num_draft_tokens": steps + 1, "acc_length": length}
        for steps, length in enumerate(lengths, start=1)
    ]
    return "".join(json.dumps(row | {"step_time": 0.02}) + "\n" for row in rows)


def read(folder: Path, text: str) -> tuple[CountedAcceptance, ...]:
    (folder / "output.jsonl").write_text(text)
    return read_counters(folder / "output.jsonl", "sglang-bench").acceptance


def nearest_by_enumeration(rates: list[float]) -> list[float]:
    """Try every way to cut rates into blocks that share their mean, within bounds: slow, and of its own code."""
    best: list[float] = []
    for cuts in product((False, True), repeat=len(rates) - 1):
        ends = [*(place for place, is_cut in enumerate(cuts, start=1) if is_cut), len(rates)]
        blocks = [rates[start:end] for start, end in pairwise([0, *ends])]
        tried = [min(max(sum(block) / len(block), 0.0), 1.0) for block in blocks for _ in block]
        if tried == sorted(tried, reverse=True) and (not best or distance(tried, rates) < distance(best, rates)):
            best = tried
    return best


def distance(ours: list[float], theirs: list[float]) -> float:
    return sum((one - other) ** 2 for one, other in zip(ours, theirs, strict=True))


def test_a_step_more_that_yields_less_is_noise(tmp_path: Path) -> None:
    found = read(tmp_path, chains(1.8, 2.3, 2.6, 2.71, 2.70))
    assert found[4].by_position == pytest.approx((0.8, 0.5, 0.3, 0.11, 0.0))
    assert found[4].tokens_per_round == 2.70
    assert "position 5 moved farthest, by 0.010" in found[4].notes[0]


def test_a_position_kept_more_often_than_the_one_before_it_is_noise(tmp_path: Path) -> None:
    found = read(tmp_path, chains(1.4, 1.603, 1.809))
    assert found[2].by_position == pytest.approx((0.4, 0.2045, 0.2045))
    assert found[2].by_position[1] >= found[2].by_position[2]
    assert found[2].tokens_per_round == 1.809 and found[2].by_length[2] == pytest.approx(1.809)
    assert found[2].notes[0].endswith(("by 0.001", "by 0.002"))  # half of 0.003, whichever way that is rounded


def test_all_lines_of_a_batch_tell_the_same_positions(tmp_path: Path) -> None:
    text = chains(1.4, 1.603, 1.809) + chains(1.5, 1.9, batch=8)
    found = read(tmp_path, text)
    assert found[1].by_position == found[2].by_position[:2]
    assert found[1].notes and not found[0].notes  # nothing of the first position was moved
    assert found[4].by_position == pytest.approx((0.5, 0.4)) and not found[4].notes


def test_runs_of_one_setting_are_averaged_and_a_note_says_so(tmp_path: Path) -> None:
    once, again = chains(1.6, 2.0), chains(1.8, 2.2)
    found = read(tmp_path, once + again)
    assert [one.tokens_per_round for one in found] == pytest.approx([1.7, 2.1])
    assert found[1].by_position == pytest.approx((0.7, 0.4))
    assert all("the mean of 2 runs" in one.notes[0] for one in found)
    assert not any("runs in the file" in note for one in read(tmp_path, once) for note in one.notes)


def test_what_falls_by_itself_is_not_moved(tmp_path: Path) -> None:
    found = read(tmp_path, chains(1.8, 2.4, 2.7))
    assert found[2].by_position == (1.8 - 1.0, 2.4 - 1.8, 2.7 - 2.4) and not found[2].notes


def test_a_step_that_adds_more_than_a_token_is_noise_too(tmp_path: Path) -> None:
    _, found = read(tmp_path, chains(1.96, 2.98))
    assert found.by_position == pytest.approx((0.99, 0.99)) and found.tokens_per_round == 2.98


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        ((1.3, 2.2), "step 1 added 0.300 .* is 0.600"),  # a rise of 0.6
        ((1.4, 1.8, 1.6), "step 3 added -0.200 .* is 0.000; .* is below 0.160"),
        ((2.01,), "batch 1: 1 steps yield 2 tokens a round at most, not 2.01"),
        ((1.9, 3.5), "batch 1: 2 steps yield 3 tokens a round at most, not 3.5"),
    ],
)
def test_what_no_noise_explains_is_refused(tmp_path: Path, lengths: tuple[float, ...], told: str) -> None:
    with pytest.raises(RequestError, match=told):
        read(tmp_path, chains(*lengths))


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_falling_rates_are_those_of_enumeration(seed: int) -> None:
    source = random.Random(seed)
    rates = [source.uniform(-0.3, 1.3) for _ in range(source.randint(1, 7))]
    assert nearest_falling(rates) == pytest.approx(nearest_by_enumeration(rates))


@pytest.mark.parametrize("chance", [0.3, 0.6, 0.8, 0.95])
def test_noise_of_the_benchmark_s_own_size_is_taken(tmp_path: Path, chance: float) -> None:
    """Each of 8 servers writes 16 prompts of 512 tokens."""
    source = np.random.default_rng(0)
    true = [chance**position for position in range(1, 9)]
    for _ in range(50):
        lengths = []
        for steps in range(1, 9):
            rounds = int(16 * 512 / (1.0 + sum(true[:steps])))
            kept = (source.random((rounds, steps)) < chance).cumprod(axis=1).sum(axis=1)
            lengths.append(round(1.0 + float(kept.mean()), 3))
        found = read(tmp_path, chains(*lengths))
        assert found[7].by_position == pytest.approx(true, abs=MOST_MOVED * lengths[7])
