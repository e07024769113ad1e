"""Engines that verify a lookup's full length in every round are priced so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from spectune.planner.engines.choice import EngineInputs, TimedSetting, offers_at, walks_of
from spectune.planner.inputs import LOOKUP
from spectune.planner.records.recording import Text
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy

RNG = np.random.default_rng(3)
TEXTS = tuple(
    Text(prompt=tuple(RNG.integers(0, 9, 6).tolist()), continuation=tuple(RNG.integers(0, 9, 40).tolist()))
    for _ in range(3)
)


def lookup(length: int) -> LookupPolicy:
    return LookupPolicy(length=length, max_ngram=2, min_ngram=2, occurrence="first")


def padded_ms(length: int) -> float:
    return 6.0 + 0.5 * length


def prices(*, pads: bool) -> Iterator[tuple[int, float]]:
    """Yield the price of every length, told those of 2 and 8 and of plain decoding."""
    timed = [TimedSetting(way=(PlainPolicy(), None), ms=5.0, error=0.01)]
    timed += [TimedSetting(way=(lookup(n), LOOKUP), ms=padded_ms(n), error=0.01) for n in (2, 8)]
    inputs = EngineInputs(traces={}, texts=TEXTS, timed={1: timed}, context=20, drift=0.0, pads_ngrams=pads)
    for offer in offers_at(inputs, walks_of(inputs), 1):
        policy = offer.way[0]
        if isinstance(policy, LookupPolicy):
            yield policy.length, offer.cost.ms


def test_a_padded_round_costs_its_full_length_at_lengths_that_were_not_timed() -> None:
    found = dict(prices(pads=True))
    assert {3, 4, 5, 6} <= set(found)
    assert found == {length: pytest.approx(padded_ms(length), rel=1e-6) for length in found}


def test_without_padding_what_is_found_counts() -> None:
    """The negative control: rounds of these texts copy less than their length."""
    found = dict(prices(pads=False))
    assert any(abs(ms - padded_ms(length)) > 0.01 * ms for length, ms in found.items())
