"""Choosing among priced candidates: the fastest, unless a simpler one is as fast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spectune.planner.plans.objective import LatencyBound
from spectune.planner.plans.prediction import ErrorParts
from spectune.planner.records.crossfit import EVERYWHERE
from spectune.planner.records.tree import TokenTree
from spectune.planner.search.candidate import Candidate
from spectune.planner.search.choice import Field, ballot_of
from spectune.planner.search.contest import CellSearch
from spectune.planner.search.estimate import of_few, relative_error, resampled_rates, resampling_weights
from spectune.planner.search.planned import alternatives
from spectune.planner.search.promise import Promise, SurfaceErrors
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy

from ..support.lossy_runs import WAY
from ..support.priced_cells import costs

TEXTS = 8
STATIC = StaticPolicy(tree=TokenTree(parents=(-1, 0), ranks=(0, 0)))


def candidate(policy: TreePolicy, speed: float, wobble: float = 0.0, drafter: str | None = "small") -> Candidate:
    """A candidate of so many tokens/s on every text; with wobble faster and slower by turns of two."""
    tokens = np.full(TEXTS, 100)
    turns = np.resize([1.0, 1.0, -1.0, -1.0], TEXTS)
    return Candidate(
        policy=policy,
        drafter=None if isinstance(policy, PlainPolicy) else drafter,
        tokens=tokens,
        ms=tokens * 1000.0 / speed * (1.0 + wobble * turns),
        tokens_per_round=2.0,
        draft_ms=1.0,
        verify_ms=8.0,
        host_ms=1.0,
        censored_share=0.0,
        run_tokens=(),
    )


def near(*candidates: Candidate) -> list[TreePolicy]:
    places = Field.of(candidates, resampling_weights(TEXTS, seed=0)).near()
    return [candidates[place].policy for place in places]


def chosen(*candidates: Candidate) -> TreePolicy:
    return near(*candidates)[0]


def test_the_fastest_is_chosen() -> None:
    assert chosen(
        candidate(PlainPolicy(), 100.0), candidate(STATIC, 150.0), candidate(ChainPolicy(length=4), 140.0)
    ) == (STATIC)


ORDER: list[TreePolicy] = [
    PlainPolicy(),
    LookupPolicy(length=2),
    LookupPolicy(length=9),
    ChainPolicy(length=1),
    STATIC,
    ChainPolicy(length=3),
    ConfidentChainPolicy(length=3),
    Eagle2Policy(verify_tokens=4, depth=0, top_k=4),
    Eagle2Policy(verify_tokens=5, depth=0, top_k=4),
]


@pytest.mark.parametrize("place", range(len(ORDER) - 1))
def test_within_half_a_percent_the_simpler_is_chosen(place: int) -> None:
    assert chosen(candidate(ORDER[place], 99.7), candidate(ORDER[place + 1], 100.0)) == ORDER[place]


def test_beyond_noise_the_faster_is_chosen() -> None:
    assert chosen(candidate(PlainPolicy(), 98.0), candidate(ChainPolicy(length=2), 100.0)) == ChainPolicy(length=2)


def test_a_difference_within_the_spread_over_texts_is_a_tie() -> None:
    rivals = candidate(PlainPolicy(), 99.2), candidate(ChainPolicy(length=2), 100.0, wobble=0.3)
    assert chosen(*rivals) == PlainPolicy()


def test_beyond_one_percent_no_spread_makes_a_tie() -> None:
    rivals = candidate(PlainPolicy(), 98.5), candidate(ChainPolicy(length=2), 100.0, wobble=0.3)
    assert chosen(*rivals) == ChainPolicy(length=2)


def test_all_that_are_as_good_stand_in_order_of_simplicity() -> None:
    field = [
        candidate(ORDER[3], 100.0),
        candidate(ORDER[8], 99.8),
        candidate(ORDER[0], 50.0),
        candidate(ORDER[2], 99.6),
    ]
    assert near(*field) == [ORDER[2], ORDER[3], ORDER[8]]


def test_a_spread_that_both_share_is_no_noise() -> None:
    rivals = candidate(PlainPolicy(), 85.0, wobble=0.3), candidate(ChainPolicy(length=2), 100.0, wobble=0.3)
    assert chosen(*rivals) == ChainPolicy(length=2)


def test_of_equally_simple_ones_the_faster_is_chosen() -> None:
    rivals = candidate(ChainPolicy(length=2), 99.8, drafter="medium"), candidate(ChainPolicy(length=2), 100.0)
    places = Field.of(rivals, resampling_weights(TEXTS, seed=0)).near()
    assert rivals[places[0]].drafter == "small"


def test_alternatives_are_the_fastest_of_every_other_kind_and_drafter() -> None:
    best = candidate(ChainPolicy(length=3), 120.0)
    field = [
        candidate(PlainPolicy(), 100.0),
        best,
        candidate(ChainPolicy(length=2), 119.0),
        candidate(ChainPolicy(length=2), 110.0, drafter="medium"),
        candidate(ChainPolicy(length=1), 112.0, drafter="medium"),
    ]
    seen = [(other.label, other.drafter, round(other.tokens_per_s)) for other in alternatives(field, best)]
    assert seen == [("chain of 1", "medium", 112), ("plain", None, 100)]


def test_a_rate_without_spread_has_no_error() -> None:
    rates = resampled_rates([candidate(PlainPolicy(), 100.0)], resampling_weights(TEXTS, seed=0))
    assert relative_error(rates[0], TEXTS) == pytest.approx(0.0, abs=1e-12)


def test_the_error_of_a_rate_is_that_of_a_mean_of_texts() -> None:
    single = candidate(PlainPolicy(), 100.0, wobble=0.1)
    rates = resampled_rates([single], resampling_weights(TEXTS, seed=0))
    closed_form = np.std(single.ms, ddof=1) / np.mean(single.ms) / np.sqrt(TEXTS)
    assert relative_error(rates[0], TEXTS) == pytest.approx(closed_form, rel=0.1)


def contest_of(*field: Candidate, **bounded: Any) -> CellSearch:
    return CellSearch(
        costs=costs(),
        texts=TEXTS,
        needs_bytes=lambda policy, drafter: None,
        priced=list(field),
        searched_on=[EVERYWHERE] * len(field),
        **bounded,
    )


@pytest.mark.parametrize(("lossless", "taken"), [(99.7, [ChainPolicy(length=2)]), (90.0, [WAY])])
def test_no_schedule_may_take_a_loss_where_a_lossless_way_ties(lossless: float, taken: list[TreePolicy]) -> None:
    field = [candidate(PlainPolicy(), 50.0), candidate(ChainPolicy(length=2), lossless), candidate(WAY, 100.0)]
    ballot = ballot_of(contest_of(*field), resampling_weights(TEXTS, seed=0))
    assert [field[place].policy for place in ballot.near] == taken


@pytest.mark.parametrize(("others_ms", "taken"), [(90.0, "chain of 1"), (96.0, "chain of 1"), (101.0, "chain of 4")])
def test_a_bound_is_kept_by_what_is_left_when_optimism_is_taken_off(others_ms: float, taken: str) -> None:
    """A chain of 4 is fast in one fold and nowhere else: it keeps the bound by luck alone."""
    lucky, sure = candidate(ChainPolicy(length=4), 97.0), candidate(ChainPolicy(length=1), 98.0, wobble=0.001)
    lucky = replace(lucky, ms=np.where(np.arange(TEXTS) % 4 == 0, 400.0, lucky.ms))
    field = [candidate(PlainPolicy(), 60.0), lucky, sure]
    latencies = [80.0, 95.0, others_ms]
    bound = LatencyBound(metric="p90_itl", most_ms=97.0)
    contest = contest_of(*field, bound=bound, latencies_ms=latencies)
    ballot = ballot_of(contest, resampling_weights(TEXTS, seed=0))
    assert {field[place].policy.code for place in ballot.near} == {taken}
    assert latencies[ballot.near[0]] / (1.0 - ballot.flattery) <= 97.0


@pytest.mark.parametrize(("texts", "quantile"), [(2, 6.314), (4, 2.353), (8, 1.895), (1000, 1.646)])
def test_the_interval_of_few_texts_is_students(texts: int, quantile: float) -> None:
    errors = ErrorParts(acceptance=of_few(0.01, texts), surfaces=0.0, drift=0.0, optimism=0.0)
    assert errors.margin == pytest.approx(0.01 * quantile, rel=1e-3)


def test_a_speedup_strays_by_what_was_timed_of_either_round() -> None:
    plain, chain = candidate(PlainPolicy(), 1.0, drafter=None), candidate(ChainPolicy(length=2), 2.0)
    errors = SurfaceErrors(verify=0.1, drafts={"small": 0.2}, apart=0.0, pace=0.0, host={2: 0.3})
    rates = np.array([[2.0, 2.0], [1.0, 1.0]])  # texts that do not differ
    promise = Promise(rates=rates, plain=plain, errors=errors, texts=TEXTS, batch=2).of(chain, 0.0)
    own = np.array([0.1 * 8.0, 0.2 * 1.0, 0.3 * 1.0]) / 10.0  # verify, draft and host of a round of 10 ms
    plainly = np.array([0.1 * 8.0, 0.3 * 1.0]) / 10.0
    assert promise.high / promise.tokens_per_s - 1.0 == pytest.approx(1.645 * np.linalg.norm(own))
    both = 1.645 * np.linalg.norm([*own, *plainly])
    assert promise.speedup_high / promise.speedup_over_plain - 1.0 == pytest.approx(both)


def test_a_resample_without_plain_rounds_says_nothing_about_the_speedup() -> None:
    plain, chain = candidate(PlainPolicy(), 1.0, drafter=None), candidate(ChainPolicy(length=2), 2.0)
    rates = np.array([[2.0, 2.1, 2.0], [1.0, 1.1, 0.0]])  # the third resample holds no text that plain decoding ran
    errors = SurfaceErrors(verify=0.0, drafts={})
    promise = Promise(rates=rates, plain=plain, errors=errors, texts=3, batch=2).of(chain, 0.0)
    assert promise.speedup_low > 1.5 and promise.speedup_high < 2.5


def test_of_equally_simple_ones_the_faster_on_the_texts_that_are_chosen_by_is_taken() -> None:
    """One is ahead by the texts that are held out, and behind without them: it must not profit from these."""
    uneven = candidate(ChainPolicy(length=2), 100.0, wobble=0.003, drafter="medium")
    field = Field.of([uneven, candidate(ChainPolicy(length=2), 99.9)], resampling_weights(TEXTS, seed=0))
    seen = np.resize([True, True, False, False], TEXTS)
    assert field.choose(np.arange(2), np.ones(TEXTS, dtype=np.bool_)) == 0
    assert [field.choose(np.arange(2), texts) for texts in (seen, ~seen)] == [1, 0]
