"""The best line of a server, against trying every one; and the batches between those that were planned."""

from __future__ import annotations

import math
import random
from itertools import pairwise, product

import pytest

from spectune.engines.schedule import EngineOffer, OfferSchedule, best_line, is_allowed, schedule_of
from spectune.engines.setting import Off, Setting
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.plain import PlainPolicy

from ..support.engine_policies import engine_drafter
from ..support.plans import plan_of

BATCHES, CONTEXTS, LENGTHS = (1, 4, 16), (100, 200), (1, 3, 5)
PLACES = [(batch, context) for context in CONTEXTS for batch in BATCHES]
PLAIN = EngineOffer(policy=PlainPolicy(), setting=None, rates=dict.fromkeys(PLACES, 100.0))


def setting(length: int, *, by_batch: bool, off: Off, longest_first: bool = False) -> Setting:
    return Setting(
        method="draft",
        drafter=engine_drafter(),
        knobs=(),
        length=length,
        by_batch=by_batch,
        off=off,
        longest_first=longest_first,
    )


def drawn(seed: int, *, by_batch: bool, off: Off, longest_first: bool = False) -> list[EngineOffer]:
    """Return offers of random speeds, some of which cannot run at some batch."""
    source = random.Random(seed)
    offers = []
    for length in LENGTHS:
        rates = {place: source.uniform(50.0, 200.0) for place in PLACES if source.random() < 0.95}
        rules = setting(length, by_batch=by_batch, off=off, longest_first=longest_first)
        offers.append(EngineOffer(policy=ChainPolicy(length=length), setting=rules, rates=rates))
    return offers


def best_by_enumeration(offers: list[EngineOffer], *, by_batch: bool, off: Off, longest_first: bool) -> float:
    """Try every assignment of lengths to batches, 0 for off, and return the best sum of log speeds over plain ones."""
    rates = {len_: offer.rates for len_, offer in zip(LENGTHS, offers, strict=True)} | {0: PLAIN.rates}
    best = 0.0
    for taken in product((0, *LENGTHS), repeat=len(BATCHES)):
        drafted = [length for length in taken if length]
        if not drafted or (not by_batch and len(set(drafted)) > 1):
            continue
        if off == "never" and 0 in taken:
            continue
        if off == "above" and (taken[0] == 0 or any(a == 0 and b for a, b in pairwise(taken))):
            continue
        if longest_first and taken[0] != max(taken):
            continue
        speeds = [rates[length].get((b, c)) for b, length in zip(BATCHES, taken, strict=True) for c in CONTEXTS]
        if all(speed is not None for speed in speeds):
            best = max(best, sum(math.log(speed / 100.0) for speed in speeds if speed is not None))
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("by_batch", "off", "longest_first"),
    [
        *[(False, "never", False), (False, "above", False), (False, "any", False)],
        *[(True, "never", False), (True, "any", False), (True, "any", True)],
    ],
)
def test_the_best_line_is_that_of_trying_all(seed: int, by_batch: bool, off: Off, longest_first: bool) -> None:
    offers = drawn(seed, by_batch=by_batch, off=off, longest_first=longest_first)
    found = best_line(PLAIN, offers)
    best = best_by_enumeration(offers, by_batch=by_batch, off=off, longest_first=longest_first)
    assert is_allowed(found.offers)
    assert best - 0.005 * len(PLACES) - 1e-9 <= found.score <= best + 1e-9


@pytest.mark.parametrize(
    ("lengths", "by_batch", "off", "longest_first", "allowed"),
    [
        ((3, 3, 3), False, "never", False, True),
        ((3, 3, 0), False, "never", False, False),
        ((3, 3, 0), False, "above", False, True),
        ((3, 0, 3), False, "above", False, False),
        ((0, 3, 3), False, "any", False, True),
        ((5, 3, 3), False, "any", False, False),
        ((5, 3, 0), True, "any", True, True),
        ((3, 5, 0), True, "any", True, False),
        ((0, 3, 3), True, "any", True, False),
        ((0, 0, 0), False, "never", True, True),
    ],
)
def test_a_server_follows_lengths_as_its_rules_say(
    lengths: tuple[int, ...], by_batch: bool, off: Off, longest_first: bool, allowed: bool
) -> None:
    offers = {
        batch: EngineOffer(
            policy=ChainPolicy(length=length),
            setting=setting(length, by_batch=by_batch, off=off, longest_first=longest_first),
            rates={},
        )
        if length
        else PLAIN
        for batch, length in zip(BATCHES, lengths, strict=True)
    }
    assert is_allowed(offers) == allowed


def test_an_unknown_speed_counts_as_plain_decoding() -> None:
    rates = {place: 150.0 if place[0] == 1 else None for place in PLACES}
    offer = EngineOffer(policy=ChainPolicy(length=3), setting=setting(3, by_batch=False, off="never"), rates=rates)
    assert best_line(PLAIN, [offer]).score == pytest.approx(2 * math.log(1.5))


def test_a_tie_goes_to_plain_decoding() -> None:
    offer = EngineOffer(
        policy=ChainPolicy(length=3),
        setting=setting(3, by_batch=False, off="never"),
        rates=dict.fromkeys(PLACES, 100.3),
    )
    assert best_line(PLAIN, [offer]).setting is None


def test_a_way_that_differs_from_what_was_priced_loses_ties() -> None:
    same = setting(5, by_batch=False, off="never")
    like = Setting(method="other", drafter=None, knobs=(), length=1, differs="it drafts otherwise")
    offers = [
        EngineOffer(policy=ChainPolicy(length=length), setting=one, rates=dict.fromkeys(PLACES, rate))
        for length, one, rate in ((5, same, 150.0), (1, like, 150.5))
    ]
    assert best_line(PLAIN, offers).setting == same


@pytest.mark.parametrize("batches", [(1, 4), (1, 2, 3), (2, 8, 32), (3, 5, 7, 100)])
def test_a_batch_between_two_goes_where_the_plan_sends_it(batches: tuple[int, ...]) -> None:
    plan: Plan = plan_of([(batch, 100) for batch in batches])
    offers = {
        batch: EngineOffer(policy=ChainPolicy(length=at), setting=setting(at, by_batch=True, off="any"), rates={})
        for at, batch in enumerate(batches, start=1)
    }
    stages = schedule_of(OfferSchedule(offers=offers, score=0.0)).stages
    for batch in range(1, 120):
        (stage,) = [s for s in stages if s.first <= batch and (s.last is None or batch <= s.last)]
        assert batches[stage.length - 1] == plan.cell(batch, 100).batch


def test_neighbours_of_one_length_are_one_stage() -> None:
    one = EngineOffer(policy=ChainPolicy(length=3), setting=setting(3, by_batch=True, off="any"), rates={})
    found = schedule_of(OfferSchedule(offers={1: one, 4: one, 16: PLAIN}, score=0.0))
    assert [(stage.first, stage.last, stage.length) for stage in found.stages] == [(1, 8, 3), (9, None, 0)]
