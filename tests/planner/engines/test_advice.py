"""Advice by counters: the length that a made-up engine is really fastest at is found from two of its times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.errors import RequestError
from spectune.planner.engines.advice import advise

LONGEST = 6
RATES = st.lists(st.floats(0.02, 1.0), min_size=LONGEST, max_size=LONGEST)


def kept(chances: Sequence[float]) -> list[float]:
    """Return unconditional acceptance by position of conditional chances."""
    return np.cumprod(chances).tolist()  # type: ignore[no-any-return]


def tpot(by_position: Sequence[float], length: int, round_ms: float) -> float:
    """Return milliseconds a token of rounds that draft so many tokens and take so long."""
    return round_ms / (1.0 + sum(by_position[:length]))


@given(RATES, st.floats(1.0, 50.0), st.floats(0.0, 20.0))
def test_an_engine_whose_drafts_cost_alike_is_advised_its_fastest_length(
    chances: list[float], plain_ms: float, each_ms: float
) -> None:
    by_position = kept(chances)
    true = [tpot(by_position, length, plain_ms + each_ms * length) for length in range(LONGEST + 1)]
    found = advise(by_position, {0: true[0], LONGEST: true[LONGEST]})
    assert [one.tpot_ms for one in found.lengths] == pytest.approx(true)
    assert true[found.best.length] == pytest.approx(min(true))
    assert found.speedup == pytest.approx(true[0] / min(true))
    assert {one.length for one in found.lengths if one.tpot_ms <= 1.02 * found.best.tpot_ms} == {
        found.best.length,
        *found.as_good,
    }


@given(RATES, st.lists(st.floats(0.0, 5.0), min_size=LONGEST, max_size=LONGEST), st.integers(1, LONGEST - 1))
def test_whatever_drafts_cost_the_truth_lies_between_the_bounds_and_nothing_faster_is_left_out(
    chances: list[float], more_ms: list[float], between: int
) -> None:
    by_position, rounds = kept(chances), 10.0 + np.concatenate([[0.0], np.cumsum(more_ms)])
    true = [tpot(by_position, length, float(rounds[length])) for length in range(LONGEST + 1)]
    found = advise(by_position, {length: true[length] for length in (0, between, LONGEST)})
    for one in found.lengths:
        assert one.least_ms <= true[one.length] * (1 + 1e-9) and true[one.length] <= one.most_ms * (1 + 1e-9)
        assert one.is_measured or one.length not in (0, between, LONGEST)
        if true[one.length] < 0.98 * found.best.tpot_ms * (1 - 1e-9):
            assert one.length in found.open


def test_an_engine_that_drafts_at_a_loss_is_advised_not_to() -> None:
    found = advise(kept([0.3] * 3), {0: 10.0, 3: 14.0})
    assert found.best.length == 0 and found.speedup == 1.0 and not found.is_longest


def test_what_was_not_measured_may_be_faster_until_it_is() -> None:
    by_position = kept([0.8, 0.5, 0.5, 0.4])
    found = advise(by_position, {0: 10.0, 4: tpot(by_position, 4, 18.0)})
    assert found.best.length == 2 and not found.best.is_measured and found.open == (1, 2, 3)
    settled = advise(by_position, {length: tpot(by_position, length, 10.0 + 2.0 * length) for length in range(5)})
    assert settled.best.length == 2 and settled.best.is_measured and not settled.open


def test_the_longest_that_ran_may_not_be_the_end() -> None:
    by_position = kept([0.9] * 4)
    assert advise(by_position, {0: 10.0, 4: tpot(by_position, 4, 11.0)}).is_longest


def test_errors_are_those_of_rounds_drawn_at_random() -> None:
    by_position, rounds = kept([0.8, 0.6, 0.5]), 400
    drawn = np.random.default_rng(0).random((4000, rounds))
    means = sum((drawn < rate).astype(float) for rate in by_position).mean(axis=1)  # type: ignore[union-attr]
    found = advise(by_position, {0: 10.0, 3: 9.0}, rounds)
    assert found.lengths[3].tokens_error == pytest.approx(float(np.std(means)), rel=0.05)
    assert found.lengths[0].tokens_error == 0.0
    assert advise(by_position, {0: 10.0, 3: 9.0}).lengths[3].tokens_error is None


def test_a_longer_draft_that_noise_makes_cheaper_is_taken_to_cost_as_much() -> None:
    by_position = kept([0.5, 0.5])
    found = advise(by_position, {0: 10.0, 1: tpot(by_position, 1, 12.0), 2: tpot(by_position, 2, 11.8)})
    assert found.lengths[2].tpot_ms == pytest.approx(tpot(by_position, 2, 12.0))
    assert found.notes == (
        "a round of 2 drafted tokens takes 11.80 ms and one of 1 12.00; noise, and counted as equal",
    )


@pytest.mark.parametrize(
    ("times", "wrong"),
    [
        ({3: 5.0}, "times of 0 drafted tokens"),
        ({0: 5.0}, "times of 0 drafted tokens"),
        ({0: 5.0, 4: 4.0}, "positions 1 to 3"),
        ({0: 5.0, -1: 4.0}, "positions 1 to 3"),
        ({0: 0.0, 3: 4.0}, "more than 0 ms"),
        ({0: float("nan"), 3: 4.0}, "more than 0 ms"),
        ({0: 5.0, 3: 1.0}, "longer drafts take no less"),
    ],
)
def test_times_that_tell_nothing_are_refused_by_what_is_wrong(times: dict[int, float], wrong: str) -> None:
    with pytest.raises(RequestError, match=wrong):
        advise(kept([0.8, 0.6, 0.5]), times)
