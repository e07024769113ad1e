"""Several policies that are written as one setting have one price: that of what is nearest."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spectune.planner.plans.plan import Plan
from spectune.planner.policies import ConfidentChainPolicy, LookupPolicy, TreePolicy
from spectune.planner.search.restricted import Staged
from spectune.runtime.engines.export import export_plan
from spectune.runtime.engines.exported import Exported
from spectune.runtime.engines.rates import PLAIN, Rates
from spectune.runtime.engines.table import ENGINES

from .engine_policies import cell_with, engine_drafter
from .priced_cells import plan_with

PLACE = (1, 100)


def exported(engine: str, prices: Mapping[LookupPolicy, float], version: str | None = None) -> Exported:
    """Return the export of a plan of the fastest of some lookups, all of them priced."""
    best = max(prices, key=lambda policy: prices[policy])
    known: dict[Staged, dict[tuple[int, int], float]] = {PLAIN: {PLACE: 100.0}}
    known |= {(policy, "lookup"): {PLACE: rate} for policy, rate in prices.items()}
    return of(engine, plan_with(cell_with(*PLACE, best, "lookup", prices[best])), known, version)


def of(
    engine: str, plan: Plan, known: Mapping[Staged, Mapping[tuple[int, int], float]], version: str | None = None
) -> Exported:
    rates, drafters = Rates(known=known, is_complete=True), {"small": engine_drafter()}
    return export_plan(plan, ENGINES[engine], drafters, target="large", version=version, rates=rates)


def lookup(most: int, least: int = 1, **more: str) -> LookupPolicy:
    return LookupPolicy(length=7, max_ngram=most, min_ngram=least, **more)  # type: ignore[arg-type]


def test_a_trie_without_sizes_has_the_price_of_the_widest_lookup() -> None:
    prices = {lookup(1): 300.0, lookup(2, 2): 290.0, lookup(4, 3): 280.0, lookup(4): 150.0, lookup(3): 250.0}
    (dropped,) = exported("sglang", prices).dropped
    assert dropped.gets == f"NGRAM, priced as {lookup(4).label}"
    assert (dropped.wanted_tokens_per_s, dropped.gets_tokens_per_s) == (300.0, 150.0)
    assert "its trie covers all requests" in dropped.reason


def test_a_trie_that_is_no_better_by_that_price_is_not_taken() -> None:
    (dropped,) = exported("sglang", {lookup(1): 300.0, lookup(4): 90.0}).dropped
    assert dropped.gets == "plain"


def test_of_lookups_that_are_as_near_the_slowest_counts() -> None:
    (dropped,) = exported("sglang", {lookup(3): 300.0, lookup(4, 2): 200.0}).dropped
    assert (dropped.gets_tokens_per_s, dropped.gets) == (200.0, f"NGRAM, priced as {lookup(4, 2).label}")


@pytest.mark.parametrize("engine", ["openvino", "transformers", "vllm"])
def test_the_first_occurrence_has_the_price_where_the_engine_copies_behind_it(engine: str) -> None:
    last, first = lookup(3, occurrence="last"), lookup(3, occurrence="first")
    (dropped,) = exported(engine, {last: 300.0, first: 200.0}).dropped
    assert (dropped.gets_tokens_per_s, dropped.wanted) == (200.0, last.label)


def test_a_threshold_without_a_length_has_the_price_of_the_longest_chain() -> None:
    policies: list[TreePolicy] = [ConfidentChainPolicy(length=length, confidence=0.4) for length in (3, 8, 20)]
    rates = dict(zip(policies, (300.0, 200.0, 150.0), strict=True))
    known: dict[Staged, dict[tuple[int, int], float]] = {PLAIN: {PLACE: 100.0}}
    known |= {(policy, "small"): {PLACE: rate} for policy, rate in rates.items()}
    (dropped,) = of("openvino", plan_with(cell_with(*PLACE, policies[0], "small", 300.0)), known, "2025").dropped
    assert dropped.gets_tokens_per_s == 150.0
