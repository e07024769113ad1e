"""Choosing on some texts and predicting on others."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.planner.plans.objective import LatencyBound
from spectune.planner.pricing.cells import cells_of
from spectune.planner.records.crossfit import EVERYWHERE, FOLDS, cross_fitted_rate, folds_of, half_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.search import solve

from ..test_stacks import two_drafters

TEXTS = 8


def rate(tokens: np.ndarray, ms: np.ndarray, searched_on: list[int] | None = None, tie: float = 0.0) -> float:
    """Choose the first within the tie of the fastest."""
    marks = np.array(searched_on if searched_on is not None else [EVERYWHERE] * len(tokens))

    def choose(may: np.ndarray, texts: np.ndarray) -> int:
        rates = tokens[may][:, texts].sum(axis=1) / np.maximum(ms[may][:, texts].sum(axis=1), 1e-9)
        return int(may[np.flatnonzero(rates >= (1.0 - tie) * rates.max())[0]])

    return cross_fitted_rate(tokens, ms, marks, choose)


def lucky_on(fold: int) -> np.ndarray:
    """Milliseconds of a candidate that is twice as fast on one fold's texts and slow elsewhere."""
    return np.where(folds_of(TEXTS) == fold, 50.0, 110.0)


def test_texts_are_dealt_evenly_and_neighbours_apart() -> None:
    assert folds_of(6).tolist() == [0, 1, 2, 3, 0, 1]
    assert folds_of(2).tolist() == [0, 1]


def test_halves_are_made_of_whole_folds() -> None:
    assert half_of(np.arange(FOLDS)).tolist() == [0, 1, 0, 1]


def test_one_candidate_keeps_its_rate() -> None:
    ms = np.arange(1.0, TEXTS + 1)[None]
    assert rate(np.full((1, TEXTS), 100.0), ms) == pytest.approx(100.0 * TEXTS / ms.sum())


def test_luck_on_a_fold_does_not_count_there() -> None:
    steady = np.full(TEXTS, 100.0)
    tokens = np.full((2, TEXTS), 100.0)
    assert rate(tokens, np.stack([steady, lucky_on(1)])) < 1.0


def test_a_candidate_that_is_better_everywhere_is_worth_all_of_it() -> None:
    tokens, ms = np.full((2, TEXTS), 100.0), np.stack([np.full(TEXTS, 100.0), np.full(TEXTS, 80.0)])
    assert rate(tokens, ms) == pytest.approx(100.0 / 80.0)


def test_what_was_searched_on_a_half_is_not_chosen_for_its_folds() -> None:
    tokens, ms = np.full((2, TEXTS), 100.0), np.stack([np.full(TEXTS, 100.0), np.full(TEXTS, 80.0)])
    on_half_of_the_texts = TEXTS * 100.0 / (TEXTS / 2 * 100.0 + TEXTS / 2 * 80.0)
    assert rate(tokens, ms, [EVERYWHERE, 0]) == pytest.approx(on_half_of_the_texts)


def test_folds_that_leave_no_choice_tell_nothing() -> None:
    tokens, ms = np.full((2, TEXTS), 100.0), np.full((2, TEXTS), 50.0)
    ms[:, half_of(folds_of(TEXTS)) == 1] = 25.0
    assert rate(tokens, ms, [0, 0]) == pytest.approx(4.0)
    assert rate(tokens, ms, [1, 1]) == pytest.approx(2.0)


def test_a_bound_that_nothing_keeps_is_missed_by_least_even_where_one_half_chose_all_that_do() -> None:
    options = SearchOptions(bound=LatencyBound(metric="p90_itl", most_ms=1e-3), trials=2)
    cells = cells_of((1, 3), (50,))
    plan = solve(two_drafters(), cells, created="2026-01-01T00:00:00Z", spectune="0.1", options=options)
    assert len(plan.cells) == 2 and not any(cell.keeps_bound for cell in plan.cells)


def test_within_the_tie_the_simpler_is_held_to_its_own_rate() -> None:
    tokens, ms = np.full((2, TEXTS), 100.0), np.stack([np.full(TEXTS, 100.0), np.full(TEXTS, 99.5)])
    assert rate(tokens, ms, tie=0.01) == pytest.approx(1.0)


def test_without_steady_rounds_on_held_out_texts_nothing_can_be_told() -> None:
    assert np.isnan(rate(np.zeros((1, TEXTS)), np.zeros((1, TEXTS))))


def test_the_cross_fitted_rate_is_that_of_brute_force() -> None:
    source = np.random.default_rng(5)
    tokens, ms = source.integers(50, 100, (30, 12)).astype(float), source.uniform(40.0, 120.0, (30, 12))
    folds = np.arange(12) % FOLDS
    spent = emitted = 0.0
    for fold in range(FOLDS):
        rates = [sum(t[folds != fold]) / sum(m[folds != fold]) for t, m in zip(tokens, ms, strict=True)]
        best = max(range(30), key=lambda place: rates[place])
        emitted += sum(tokens[best][folds == fold])
        spent += sum(ms[best][folds == fold])
    assert rate(tokens, ms) == pytest.approx(emitted / spent)
