"""What timing a shape is worth to the plan."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.pricing.worth import DecisionWorth, sketches
from spectune.planner.records.recording import Text

SURE, HOPELESS = np.array([0.9, 0.05]), np.array([0.02, 0.01])


def cost(surface: int, shape: tuple[int, int, int]) -> float | None:
    """Return 10 ms for the target up to 8 tokens, 40 ms beyond, and 1 ms for a drafter."""
    if surface:
        return 1.0
    return 10.0 if shape[2] <= 8 else 40.0


def test_tokens_beyond_a_dear_edge_are_worth_less_than_those_before_it() -> None:
    worth = DecisionWorth(0, {1: SURE}, (100,)).worths(cost)
    assert worth(0, (1, 100, 7)) > 3 * worth(0, (1, 100, 20))


def test_a_hopeless_drafter_leaves_worth_to_plain_decoding_alone() -> None:
    worth = DecisionWorth(0, {1: HOPELESS}, (100,)).worths(cost)
    assert worth(0, (1, 100, 1)) == pytest.approx(1.0)
    assert worth(0, (1, 100, 16)) < 0.1


def test_worth_lies_between_none_and_all() -> None:
    worth = DecisionWorth(0, {1: SURE}, (100,)).worths(cost)
    found = [worth(surface, (1, 100, n)) for surface in (0, 1, 2) for n in (1, 16, 64)]
    assert min(found) >= 0.0
    assert max(found) == 1.0


def test_the_widths_of_the_best_trees_are_worth_most_among_a_drafters() -> None:
    worth = DecisionWorth(0, {1: SURE}, (100,)).worths(cost)
    assert worth(1, (1, 100, 1)) > worth(1, (1, 100, 16))  # a sure drafter wants chains


def test_without_any_cost_every_shape_is_worth_the_same() -> None:
    worth = DecisionWorth(0, {1: SURE}, (100,)).worths(lambda surface, shape: None)
    assert {worth(0, (1, 100, n)) for n in (1, 8, 64)} == {0.0}


def test_a_chain_yields_the_geometric_sum_of_its_acceptance() -> None:
    chain = next(sketch for sketch in sketches(1, SURE) if sketch.widths == (1, 1, 1) and sketch.verify_tokens == 4)
    assert chain.tokens_per_round == pytest.approx(1 + 0.9 + 0.81 + 0.729)


def test_rates_need_a_context() -> None:
    with pytest.raises(PlanError, match="context"):
        DecisionWorth(0, {1: SURE}, ())


def test_lengths_that_lookups_profit_from_are_worth_more_than_longer_ones() -> None:
    repeating = Text(prompt=(1, 2, 3, 4), continuation=(1, 2, 3, 4) * 12)
    worth = DecisionWorth(0, {1: np.array([0.01])}, (100,), [repeating, repeating]).worths(cost)
    assert worth(0, (1, 100, 8)) > worth(0, (1, 100, 2))


def test_plain_decoding_is_always_worth_measuring() -> None:
    worth = DecisionWorth(0, {1: SURE}, (100,)).worths(cost)
    assert worth(0, (1, 100, 1)) == 1.0
