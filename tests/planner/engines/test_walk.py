"""How far the texts of an engine's plan leave its tokens per round open, against a law that is known."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.planner.engines.walk import Walk, acceptance_error
from spectune.planner.plans.prediction import SDS_OF_90_PERCENT


def drawn(draw: np.random.Generator, texts: int) -> Walk:
    rounds = 100.0 + 10.0 * draw.normal(size=texts)
    return Walk(tokens=np.full(texts, 200.0), rounds=rounds, drafts=rounds, drafted=rounds)


@pytest.mark.parametrize("texts", [4, 24])
def test_nine_of_ten_intervals_hold_what_as_many_other_texts_show(texts: int) -> None:
    draw, held = np.random.default_rng(3), []
    for seed in range(1000):
        recorded, others = drawn(draw, texts), drawn(draw, texts)
        off = abs(others.tokens_per_round / recorded.tokens_per_round - 1.0)
        held.append(off <= SDS_OF_90_PERCENT * acceptance_error(recorded, seed))
    assert 0.87 < np.mean(held) < 0.93
