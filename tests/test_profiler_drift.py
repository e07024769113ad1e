"""How slow the whole device was in each round."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spectune.profiler.drift import FEWEST_CELLS, round_drift

TRUE = np.array([1.0, 1.0, 1.3, 1.6, 0.9, 1.0, 1.0])


def test_drift_is_found_through_noise_and_outliers() -> None:
    noise = random.Random(2)
    cells = [[base * slow * noise.gauss(1.0, 0.005) for slow in TRUE] for base in np.linspace(1, 50, 40)]
    for row in cells[::4]:
        row[noise.randrange(len(row))] *= 10
    assert round_drift(cells) == pytest.approx(TRUE, rel=0.02)


def test_cells_that_missed_the_last_rounds_count_in_the_others() -> None:
    whole = [[base * slow for slow in TRUE] for base in range(1, FEWEST_CELLS + 1)]
    assert round_drift([*whole, whole[0][:6]]) == pytest.approx(TRUE)


def test_a_round_of_few_cells_has_no_drift_of_its_own() -> None:
    cells = [[1.0, 1.0, 1.0, 1.0]] * FEWEST_CELLS + [[1.0, 1.0, 1.0, 1.0, 3.0]] * (FEWEST_CELLS - 1)
    assert round_drift(cells).tolist() == [1.0] * 5


def test_few_cells_keep_their_noise_as_noise() -> None:
    assert round_drift([[2.0, 4.0, 6.0]] * (FEWEST_CELLS - 1)).tolist() == [1.0, 1.0, 1.0]


def test_nothing_measured_has_no_rounds() -> None:
    assert round_drift([]).shape == (0,)
