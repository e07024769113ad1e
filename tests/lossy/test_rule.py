"""T10, the rule by itself: gate, window, entropies, and the recurrence of its expected length."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from spectune.errors import PlanError
from spectune.planner.records.fly_rule import FlyRule, accepted_length, confirmed_mismatches, expected_accepted
from spectune.runtime.engine.fly import entropies_of

from ..support.lossy_rules import fly_accept

OPEN = FlyRule(threshold=0.0, window=2)
CLOSED = 1e9


def by_definition(matches: list[bool], entropies: list[float], rule: FlyRule) -> int:
    """Return how many stay, sentence by sentence of the specification: no code is shared with the rule."""
    count = len(matches)
    for j in range(count):
        if matches[j]:
            continue
        if entropies[j] < rule.threshold:
            return j
        if j + rule.window > count - 1:
            return j
        last = j + rule.window - (1 if rule.counts_itself else 0)
        for i in range(j + 1, last + 1):
            if not matches[i]:
                return j
    return count


@pytest.mark.parametrize("counts_itself", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_the_rule_is_its_definition_for_every_mask_of_seven(window: int, counts_itself: bool) -> None:
    rule = FlyRule(threshold=0.5, window=window, counts_itself=counts_itself)
    rng = np.random.default_rng(window)
    for mask in itertools.product([True, False], repeat=7):
        entropies = rng.random(7).tolist()
        assert fly_accept(mask, entropies, rule) == by_definition(list(mask), entropies, rule)


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        ("TTTTTT", 6),
        ("TFTTTT", 6),  # two match behind it
        ("TTTTTF", 5),  # nothing behind it: the end of a draft is strict
        ("TTTTFT", 4),  # one is too few
        ("TTTFTT", 6),  # the last place with room for the window
        ("FTFTTT", 0),  # a second mismatch in the window
        ("FTTFTT", 6),  # and one behind it
        ("FFTTTT", 0),  # what was let pass does not count as a match
    ],
)
def test_the_window_defers(mask: str, kept: int) -> None:
    matches = [letter == "T" for letter in mask]
    assert fly_accept(matches, [1.0] * 6, OPEN) == kept


def test_a_window_that_counts_itself_asks_for_one_token_fewer() -> None:
    matches = [True, False, True, True, True, True, False]
    published = FlyRule(threshold=0.0, window=5, counts_itself=True)
    assert fly_accept(matches, [1.0] * 7, published) == 6
    assert fly_accept(matches, [1.0] * 7, replace(published, counts_itself=False)) == 1


@pytest.mark.parametrize("rule", [FlyRule(threshold=CLOSED, window=1), FlyRule(threshold=0.0, window=8)])
def test_neutral_rules_are_strict(rule: FlyRule) -> None:
    for mask in itertools.product([True, False], repeat=8):
        strict = list(mask).index(False) if False in mask else 8
        assert fly_accept(mask, [1.0] * 8, rule) == strict


def test_negative_control_an_open_rule_is_not_strict() -> None:
    masks = list(itertools.product([True, False], repeat=8))
    differs = [mask for mask in masks if fly_accept(mask, [1.0] * 8, OPEN) != accepted_length(mask, ())]
    assert len(differs) > 20


def test_more_stays_with_a_lower_threshold_and_a_shorter_window() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        mask, entropies = (rng.random(12) < 0.8).tolist(), rng.random(12).tolist()
        by_window = [fly_accept(mask, entropies, FlyRule(threshold=0.4, window=w)) for w in (1, 2, 4, 8)]
        by_gate = [fly_accept(mask, entropies, FlyRule(threshold=t, window=2)) for t in (0.0, 0.3, 0.6, 0.9)]
        assert by_window == sorted(by_window, reverse=True)
        assert by_gate == sorted(by_gate, reverse=True)


def test_the_gate_is_asked_only_where_the_window_agrees() -> None:
    assert confirmed_mismatches([False, True, True, False, True, False], OPEN) == [0]


# --- entropies


def rows() -> torch.Tensor:
    """Return logits of a sure, an undecided, a uniform and a masked distribution over 8 tokens."""
    undecided = torch.tensor([3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    sure = torch.tensor([20.0, 0, 0, 0, 0, 0, 0, 0])
    masked = torch.tensor([1.0, 1.0, *[-math.inf] * 6])
    return torch.stack([sure, undecided, torch.zeros(8), masked])


def by_hand(row: torch.Tensor, *, top: int | None) -> float:
    """Return the entropy of a row by sums over Python floats."""
    weights = [math.exp(value) for value in row.tolist()]
    shares = sorted((weight / sum(weights) for weight in weights), reverse=True)
    used = shares if top is None else shares[:top]
    whole = -sum(p * math.log(p) for p in used if p > 0)
    return whole if top is not None else whole / math.log(len(shares))


@pytest.mark.parametrize("top", [1, 3, 8])
def test_top_nats_is_the_partial_entropy_that_is_not_normalised(top: int) -> None:
    found = entropies_of(rows(), FlyRule(top=top)).tolist()
    assert found == pytest.approx([by_hand(row, top=top) for row in rows()], abs=1e-6)


def test_normalised_is_the_whole_entropy_over_its_most() -> None:
    found = entropies_of(rows(), FlyRule(entropy="normalised")).tolist()
    assert found == pytest.approx([by_hand(row, top=None) for row in rows()], abs=1e-6)
    assert found[2] == pytest.approx(1.0)


def test_the_definitions_disagree_about_the_same_gate() -> None:
    """Flat over a large vocabulary is the most unsure a model can be, and the best three say next to nothing of it."""
    flat = torch.zeros(1, 4096)
    (top,), (whole,) = entropies_of(flat, FlyRule()), entropies_of(flat, FlyRule(entropy="normalised"))
    assert top < 0.3 < whole
    two = torch.full((1, 4096), -30.0)
    two[0, :2] = 0.0
    (top,), (whole,) = entropies_of(two, FlyRule()), entropies_of(two, FlyRule(entropy="normalised"))
    assert top > 0.3 > whole


# --- the recurrence


@pytest.mark.parametrize("counts_itself", [False, True])
@pytest.mark.parametrize(
    ("length", "window", "match", "is_open"), [(15, 6, 0.85, 0.5), (8, 2, 0.6, 0.9), (6, 1, 0.5, 1)]
)
def test_the_recurrence_is_the_mean_over_simulated_masks(
    length: int, window: int, match: float, is_open: float, counts_itself: bool
) -> None:
    rule = FlyRule(threshold=0.5, window=window, counts_itself=counts_itself)
    rng = np.random.default_rng(7)
    masks = rng.random((20_000, length)) < match
    entropies = (rng.random((20_000, length)) < is_open).astype(float)
    kept = [fly_accept(mask, gate, rule) for mask, gate in zip(masks.tolist(), entropies.tolist(), strict=True)]
    error = float(np.std(kept)) / math.sqrt(len(kept))
    assert abs(expected_accepted(length, match, is_open, rule) - float(np.mean(kept))) < 4 * error


def test_the_recurrence_gives_the_worked_example() -> None:
    assert expected_accepted(15, 0.85, 0.5, FlyRule()) == pytest.approx(6.63, abs=0.005)
    assert expected_accepted(15, 0.85, 0.0, FlyRule()) == pytest.approx(5.17, abs=0.005)


@pytest.mark.parametrize("is_open", [0.0, 1.0])
def test_the_recurrence_of_a_closed_gate_or_a_window_without_room_is_that_of_strict_verification(
    is_open: float,
) -> None:
    strict = sum(0.7**k for k in range(1, 7))
    window = 6 if is_open else 1
    assert expected_accepted(6, 0.7, is_open, FlyRule(window=window)) == pytest.approx(strict)


# --- refusals


@pytest.mark.parametrize("values", [{"threshold": -0.1}, {"threshold": math.inf}, {"window": 0}, {"top": 0}])
def test_impossible_rules_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(PlanError, match="at least"):
        FlyRule(**values)  # type: ignore[arg-type]


def test_chances_outside_0_and_1_are_refused() -> None:
    with pytest.raises(PlanError, match=r"got 3, 1\.5"):
        expected_accepted(3, 1.5, 0.5, OPEN)
