"""Rounds of n-grams have one price, whichever search made them; one timing's luck does not decide between searches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.planner.engines.choice import EngineInputs, TimedSetting, Way, best_of, offers_at, walks_of
from spectune.planner.records.recording import Text
from spectune.planner.strategies.lookup import AnyOccurrence, LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.tuning.engines.pooling import pooled, shrunk

SEARCHES = (1, 2, 3)  # longest n-gram
LENGTHS = (2, 4, 8)
TIMED = ((1, 2), (2, 4), (3, 8), (2, 8), (3, 4))


def drawn_texts(seed: int = 0, count: int = 12) -> tuple[Text, ...]:
    """Return texts of few tokens in which longer n-grams tell more than short ones."""
    draw = np.random.default_rng(seed)
    law = draw.integers(0, 6, size=(6, 6))
    found = []
    for _ in range(count):
        tokens = draw.integers(0, 6, size=2).tolist()
        while len(tokens) < 100:
            tokens.append(int(law[tokens[-2], tokens[-1]]) if draw.random() < 0.8 else int(draw.integers(0, 6)))
        found.append(Text(prompt=tuple(tokens[:40]), continuation=tuple(tokens[40:])))
    return tuple(found)


def lookup(ngram: int, length: int) -> Way:
    return LookupPolicy(length=length, max_ngram=ngram, occurrence="first"), "lookup"


def true_ms(length: int, step_ms: float = 0.0) -> float:
    """Return a law in which 4 tokens may be dearer than more of them, as where a kernel for few ends."""
    return 10.0 + 0.5 + 0.3 * length + (step_ms if length == 4 else 0.0)


def inputs(noise: float, error: float, *, seed: int = 1, step_ms: float = 0.0) -> EngineInputs:
    """Return an engine whose rounds cost their full length, timed with a known noise."""
    draw = np.random.default_rng(seed)
    timed = [TimedSetting(way=(PlainPolicy(), None), ms=10.0, error=0.001)]
    for ngram, length in TIMED:
        ms = true_ms(length, step_ms) * float(np.exp(noise * draw.normal()))
        timed.append(TimedSetting(way=lookup(ngram, length), ms=ms, error=error))
    return EngineInputs(traces={}, texts=drawn_texts(), timed={1: timed}, context=70, drift=0.0, pads_ngrams=True)


def prices(given: EngineInputs) -> dict[Way, float]:
    return {offer.way: offer.cost.ms for offer in offers_at(given, walks_of(given), 1)}


def test_a_search_has_the_price_of_every_length_that_another_one_was_timed_at() -> None:
    as_timed = inputs(0.0, 0.01, step_ms=2.0)
    told = prices(pooled(as_timed, walks_of(as_timed)))
    for ngram in SEARCHES:
        for length in LENGTHS:
            assert told[lookup(ngram, length)] == pytest.approx(true_ms(length, 2.0), rel=0.01)
    assert prices(as_timed)[lookup(1, 4)] != pytest.approx(true_ms(4, 2.0), rel=0.02)  # else pooling tells nothing new


def test_searches_of_one_length_cost_the_same_whatever_their_timings_were() -> None:
    as_timed = inputs(0.03, 0.03, seed=3)
    apart = prices(as_timed)
    assert apart[lookup(2, 4)] != pytest.approx(apart[lookup(3, 4)], rel=0.01)
    together = prices(pooled(as_timed, walks_of(as_timed)))
    for length in LENGTHS:
        assert len({round(together[lookup(ngram, length)], 6) for ngram in SEARCHES}) == 1


def test_noisy_timings_lead_to_better_choices_when_they_are_pooled() -> None:
    """Judged by the law that made the timings: the share of the best speed that each choice reaches."""

    def share(given: EngineInputs) -> float:
        walks = walks_of(given)
        true = {
            way: found.tokens_per_round / (10.0 if way[1] is None else true_ms(way[0].max_verify_tokens - 1))
            for way, found in walks.items()
        }
        return true[best_of(offers_at(given, walks, 1)).way] / max(true.values())

    drawn = [inputs(0.03, 0.03, seed=seed) for seed in range(40)]
    alone = [share(one) for one in drawn]
    together = [share(pooled(one, walks_of(one))) for one in drawn]
    assert np.mean(together) > np.mean(alone) and min(together) > min(alone)
    assert np.mean(together) > 0.995 and min(together) > 0.95


def test_what_timings_are_sure_of_stays_and_what_they_are_not_is_pulled_together() -> None:
    sure, unsure = shrunk([0.0, 0.1, 0.2], [1e-4] * 3), shrunk([0.0, 0.01, 0.02], [0.05] * 3)
    assert [one.value for one in sure] == pytest.approx([0.0, 0.1, 0.2], abs=1e-5)
    assert [one.value for one in unsure] == pytest.approx([0.01] * 3)
    assert all(one.error == pytest.approx(0.05 / 3**0.5) for one in unsure)
    assert shrunk([0.3], [0.02])[0].value == pytest.approx(0.3)


def test_drafters_and_plain_decoding_keep_their_timings() -> None:
    as_timed = inputs(0.03, 0.03)
    walks = walks_of(as_timed)
    kept = pooled(as_timed, walks).timed[1]
    assert as_timed.timed[1][0] in kept
    no_text = replace(as_timed, timed={1: as_timed.timed[1][:1]})
    assert pooled(no_text, walks_of(no_text)).timed == {1: list(no_text.timed[1])}


def test_searches_that_remember_have_a_curve_of_their_own() -> None:
    """They draft seldom and much: here a round of theirs costs four fifths of what a round of the others does."""

    def way(length: int, occurrence: AnyOccurrence) -> Way:
        return LookupPolicy(length=length, max_ngram=2, min_ngram=2, occurrence=occurrence), "lookup"

    own = [(way(length, "last"), 1.0) for length in (2, 4)] + [(way(length, "mapped"), 0.8) for length in (2, 4)]
    plain = TimedSetting(way=(PlainPolicy(), None), ms=10.0, error=0.001)
    timed = [TimedSetting(way=one, ms=share * true_ms(one[0].max_verify_tokens), error=0.001) for one, share in own]
    given = EngineInputs(traces={}, texts=drawn_texts(), timed={1: [plain, *timed]}, context=70, drift=0.0)
    told = {one.way: one.ms for one in pooled(given, walks_of(given)).timed[1]}
    for one in timed:
        assert told[one.way] == pytest.approx(one.ms, rel=0.06)
    for length in (2, 4):
        assert told[way(length, "mapped")] < 0.88 * told[way(length, "last")]
