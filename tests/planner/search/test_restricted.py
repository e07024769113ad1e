"""Prices of chosen policies are those that the planner gives them one by one."""

from __future__ import annotations

from functools import cache

import pytest

from spectune.planner.inputs import LOOKUP, PlanInputs
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.pricing.cells import Cell, cells_of
from spectune.planner.search.price import price
from spectune.planner.search.restricted import Staged, prices
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy

from ...support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts

STAGED: list[Staged] = [
    (PlainPolicy(), None),
    (ChainPolicy(length=3), "small"),
    (ConfidentChainPolicy(length=4, confidence=0.3), "small"),
    (Eagle2Policy(verify_tokens=6, depth=1, top_k=2), "small"),
    (Eagle2Policy(verify_tokens=4, depth=0, top_k=3), "small"),
    (LookupPolicy(length=4), LOOKUP),
    (SuffixTreePolicy(nodes=6), LOOKUP),
    (HybridPolicy(text=SuffixPolicy(length=4, min_match=2), model=ChainPolicy(length=3)), "small"),
    (StackPolicy(drafters=("small", LOOKUP), lengths=(2, 3)), "small+lookup"),
]


@cache
def measured() -> PlanInputs:
    spoken = Language(3)
    return inputs(record(SkilledDrafter(spoken, 0.8), texts(spoken, 4, lambda text: 12), every_node(3, 3)))


@cache
def cells() -> tuple[Cell, ...]:
    return cells_of((1, 3), (2, 40))


@pytest.mark.parametrize("staged", STAGED, ids=lambda one: one[0].kind)
def test_a_price_is_that_of_the_policy_alone(staged: Staged) -> None:
    found = prices(measured(), cells(), STAGED)[staged]
    policy, drafter = staged
    for cell in cells():
        alone = price(measured(), cell, policy, drafter).tokens_per_s
        assert found[cell.batch, cell.context].tokens_per_s == pytest.approx(alone)


def test_a_policy_that_cannot_be_priced_has_no_price() -> None:
    wide: TreePolicy = Eagle2Policy(verify_tokens=20, depth=1, top_k=9)
    assert prices(measured(), cells(), [(PlainPolicy(), None), (wide, "small")])[wide, "small"] == {}


def test_a_padded_round_verifies_the_full_size_whatever_was_found() -> None:
    cell, lookup = cells_of((1,), (40,))[0], LookupPolicy(length=4)
    padded = prices(measured(), [cell], [(lookup, LOOKUP)], is_padded=True)[lookup, LOOKUP][1, 40].tokens_per_s
    alone = price(measured(), cell, lookup, LOOKUP)
    verify_ms, host_ms = 10.0 + 0.1 * 5, 0.1
    assert padded == pytest.approx(1000.0 * alone.tokens_per_round / (verify_ms + host_ms))
    assert padded < alone.tokens_per_s


def test_a_price_says_whether_the_bound_is_kept() -> None:
    found = prices(measured(), cells(), STAGED[:2], LatencyBound(metric="itl", most_ms=9.0))
    assert not any(one.keeps_bound for one in found[STAGED[0]].values())
    assert all(one.keeps_bound for one in found[STAGED[1]].values())
