"""What choosing on a few texts flatters the choice by, against a law that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from spectune.planner.engines import choice
from spectune.planner.engines.choice import EngineInputs, Offer, best_of, sure_of
from spectune.planner.engines.costs import RoundCost
from spectune.planner.engines.walk import Walk
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy

TEXTS, TOKENS, WAYS = 24, 96.0, 20
Floats = NDArray[np.float64]


def offers_of(rounds: Floats) -> list[Offer]:
    """Return ways that cost the same a round, given their rounds (ways, texts)."""
    return [
        Offer(
            way=(LookupPolicy(length=1 + place), "lookup"),
            walk=Walk(tokens=np.full(TEXTS, TOKENS), rounds=own, drafts=own, drafted=own),
            cost=RoundCost(draft_ms=0.0, rest_ms=1.0, error=0.0),
            concurrency=1,
        )
        for place, own in enumerate(rounds)
    ]


def flattery_of(offers: Sequence[Offer], seed: int = 0) -> float:
    chosen = best_of(offers)
    return choice._optimism(offers, [offer is chosen for offer in offers].index(True), seed)


def drawn(draw: np.random.Generator, noise: float) -> Floats:
    """Return rounds that are 40 on average for every way: by the text, which is alike for all, and by luck."""
    text = np.exp(0.4 * draw.normal(size=TEXTS))
    return 40.0 * text * np.exp(noise * draw.normal(size=(WAYS, TEXTS)) - noise**2 / 2)


@pytest.mark.parametrize("noise", [0.2, 0.5])
def test_the_flattery_of_equal_ways_is_about_what_the_best_of_them_seems_ahead_by(noise: float) -> None:
    """Every way is as good as all of them together, so what the choice seems to be ahead of that is luck."""
    draw, told, true = np.random.default_rng(3), [], []
    for seed in range(30):
        offers = offers_of(drawn(draw, noise))
        rates = [offer.tokens_per_s for offer in offers]
        told.append(flattery_of(offers, seed))
        true.append(1.0 - float(np.mean(rates)) / best_of(offers).tokens_per_s)
    assert 0.5 * np.mean(true) < np.mean(told) < 1.3 * np.mean(true)


def test_a_way_that_is_best_on_every_text_is_not_flattered() -> None:
    rounds = drawn(np.random.default_rng(4), 0.1)
    rounds[5] *= 0.3
    assert flattery_of(offers_of(rounds)) == pytest.approx(0.0, abs=1e-9)


def test_texts_that_differ_flatter_nobody_where_there_is_no_choice() -> None:
    assert flattery_of(offers_of(drawn(np.random.default_rng(5), 0.3)[:1])) == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_taken_off_plain_decoding_s_own_promise() -> None:
    """Texts drawn again favour its rivals by luck; where it is chosen it promises its own speed all the same."""
    rounds = drawn(np.random.default_rng(6), 0.4)
    rounds[0] *= 0.9 * rounds.sum(axis=1).min() / rounds[0].sum()
    offers = offers_of(rounds)
    assert flattery_of(offers) > 0.01
    offers[0] = replace(offers[0], way=(PlainPolicy(), None))
    told = EngineInputs(traces={}, texts=(), timed={}, context=50, drift=0.01)
    cell = choice._cell(offers, told, seed=0)
    assert cell.policy == PlainPolicy()
    assert cell.prediction == cell.plain
    assert (cell.prediction.errors.optimism, cell.prediction.speedup_over_plain) == (0.0, 1.0)


def test_what_nobody_timed_has_to_beat_what_was_by_more_than_its_error() -> None:
    rounds = np.full((3, TEXTS), 40.0)
    rounds[1:] *= np.array([[0.98], [0.90]])
    timed, close, far = offers_of(rounds)
    unsure = [replace(one, is_timed=False, cost=replace(one.cost, error=0.05)) for one in (close, far)]
    assert [offer.way for offer in sure_of([timed, *unsure])] == [timed.way, far.way]
    assert sure_of([timed, close]) == [timed, close]
    assert sure_of(unsure) == unsure
