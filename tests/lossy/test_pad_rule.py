"""T10, PAD's rule by itself: floor, threshold, what its features are, and the recurrence of its expected length."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from spectune.errors import PlanError
from spectune.planner.records.pad_rule import PadRule, expected_accepted
from spectune.planner.strategies import drafting, policy_from_json, policy_to_json
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.lossy import classifiers_of
from spectune.planner.strategies.pad import PadPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.runtime.models.pivots import features_of

from ..support.lossy_rules import pad_accept
from ..support.synthetic import model

WAY = PadPolicy(draft=ChainPolicy(length=4), rule=PadRule(threshold=0.4), classifier=model("pivots"))
RULES = [PadRule(threshold=t, floor=f) for t in (0.0, 0.3, 0.7, 1.0) for f in (0.0, 0.1, 0.5, 1.0)]


def token_by_token(matches: list[bool], probabilities: list[float], chances: list[float], rule: PadRule) -> int:
    """Return how many stay, as the specification walks the draft: no code is shared with the rule."""
    stayed = 0
    for own, probability, chance in zip(matches, probabilities, chances, strict=True):
        rejected_by_strict = not own
        if rejected_by_strict:
            if probability < rule.floor:
                break
            is_pivot = not (chance < rule.threshold)
            if is_pivot:
                break
        stayed += 1
    return stayed


def drawn(seed: int, length: int = 9) -> tuple[list[bool], list[float], list[float]]:
    rng = np.random.default_rng(seed)
    return (rng.random(length) < 0.6).tolist(), rng.random(length).tolist(), rng.random(length).tolist()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_the_rule_is_its_definition_over_random_drafts(rule: PadRule) -> None:
    for seed in range(400):
        assert pad_accept(*drawn(seed), rule) == token_by_token(*drawn(seed), rule)


def test_values_at_the_limits_are_taken_as_published() -> None:
    rule = PadRule(threshold=0.5, floor=0.1)
    assert pad_accept([False], [0.1], [0.49], rule) == 1  # the floor itself may stay
    assert pad_accept([False], [0.1], [0.5], rule) == 0  # the threshold itself is a pivot
    assert pad_accept([False], [0.0999], [0.0], rule) == 0
    assert pad_accept([False], [0.5], [math.nan], rule) == 0


@pytest.mark.parametrize("rule", [PadRule(threshold=0.0, floor=0.0), PadRule(threshold=1.0, floor=1.0)])
def test_the_strict_ends_are_strict(rule: PadRule) -> None:
    for seed in range(300):
        matches, probabilities, chances = drawn(seed)
        assert pad_accept(matches, probabilities, chances, rule) == [*matches, False].index(False)


def test_negative_control_an_open_rule_is_not_strict() -> None:
    rule = PadRule(threshold=1.0, floor=0.0)
    assert all(pad_accept(*drawn(seed), rule) == 9 for seed in range(50))


def test_what_strict_verification_keeps_stays_and_more_stays_with_a_higher_threshold_and_a_lower_floor() -> None:
    for seed in range(300):
        matches, probabilities, chances = drawn(seed)
        strict = [*matches, False].index(False)
        by_threshold = [
            pad_accept(matches, probabilities, chances, PadRule(threshold=t, floor=0.1)) for t in (0, 0.3, 0.6, 1)
        ]
        by_floor = [
            pad_accept(matches, probabilities, chances, PadRule(threshold=0.6, floor=f)) for f in (1, 0.5, 0.1, 0)
        ]
        assert strict == by_threshold[0] and by_threshold == sorted(by_threshold)
        assert strict <= by_floor[0] and by_floor == sorted(by_floor)


# --- features


def test_features_are_the_state_the_probability_and_the_entropy_by_hand() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0, -math.inf], [0.0, 0.0, 0.0, 0.0]])
    states = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    found = features_of(states, logits, torch.tensor([1, 3]))
    total = math.exp(2) + 2
    p = [math.exp(2) / total, 1 / total, 1 / total]
    expected = [[1.0, -2.0, p[1], -sum(x * math.log(x) for x in p)], [0.5, 3.0, 0.25, math.log(4)]]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor(expected))


# --- the recurrence


@pytest.mark.parametrize(("length", "match", "passes"), [(10, 0.7, 0.4), (4, 0.3, 0.9), (7, 0.9, 0.0)])
def test_the_recurrence_is_the_mean_over_simulated_drafts(length: int, match: float, passes: float) -> None:
    rng = np.random.default_rng(3)
    rule = PadRule(threshold=passes, floor=0.0)
    kept = [
        pad_accept((rng.random(length) < match).tolist(), [1.0] * length, rng.random(length).tolist(), rule)
        for _ in range(20_000)
    ]
    error = float(np.std(kept)) / math.sqrt(len(kept))
    assert abs(expected_accepted(length, match, passes) - float(np.mean(kept))) < 4 * error


# --- refusals and records


@pytest.mark.parametrize("values", [{"threshold": -0.1}, {"threshold": 1.1}, {"floor": -1.0}, {"floor": math.nan}])
def test_impossible_rules_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(PlanError, match=r"chances in \[0, 1\]"):
        PadRule(**values)


def test_chances_outside_0_and_1_are_refused() -> None:
    with pytest.raises(PlanError, match=r"got 3, 0\.5 and 2"):
        expected_accepted(3, 0.5, 2.0)


def test_a_tree_is_no_draft_for_the_rule() -> None:
    with pytest.raises(PlanError, match="take one without siblings"):
        replace(WAY, draft=StackPolicy(drafters=("a",), lengths=(3,), siblings=1))


def test_the_policy_says_lossy_and_comes_back_with_its_classifier() -> None:
    assert WAY.code.startswith("LOSSY chain of 4 by PAD, pivots from 0.4, floor 0.0001, classifier pivots")
    assert policy_from_json(policy_to_json(WAY)) == WAY
    assert drafting(WAY) == WAY.draft


def test_one_name_stands_for_one_classifier() -> None:
    other = replace(WAY, classifier=replace(WAY.classifier, weights_hash="f" * 64))
    assert classifiers_of([WAY, WAY.draft, WAY]) == (("pivots", WAY.classifier),)
    with pytest.raises(PlanError, match="two sets of weights"):
        classifiers_of([WAY, other])
