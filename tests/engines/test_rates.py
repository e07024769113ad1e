"""Several policies that are written as one setting have one price: that of what is nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from spectune.engines.export import Exported, export_plan
from spectune.engines.rates import PLAIN, Rates
from spectune.engines.table import ENGINES
from spectune.planner.plans.plan import Plan
from spectune.planner.search.restricted import Staged
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.lookup import LookupPolicy

from ..support.engine_policies import cell_with, engine_drafter
from ..support.priced_cells import plan_with

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
    assert dropped.gets == f"NGRAM, priced as {lookup(4).code}"
    assert (dropped.wanted_tokens_per_s, dropped.gets_tokens_per_s) == (300.0, 150.0)
    assert "its trie covers all requests" in dropped.reason


def test_a_trie_that_is_no_better_by_that_price_is_not_taken() -> None:
    (dropped,) = exported("sglang", {lookup(1): 300.0, lookup(4): 90.0}).dropped
    assert dropped.gets == "plain"


def test_of_lookups_that_are_as_near_the_slowest_counts() -> None:
    (dropped,) = exported("sglang", {lookup(3): 300.0, lookup(4, 2): 200.0}).dropped
    assert (dropped.gets_tokens_per_s, dropped.gets) == (200.0, f"NGRAM, priced as {lookup(4, 2).code}")


@pytest.mark.parametrize("engine", ["openvino", "transformers", "vllm"])
def test_the_first_occurrence_has_the_price_where_the_engine_copies_behind_it(engine: str) -> None:
    last, first = lookup(3, occurrence="last"), lookup(3, occurrence="first")
    (dropped,) = exported(engine, {last: 300.0, first: 200.0}).dropped
    assert (dropped.gets_tokens_per_s, dropped.wanted) == (200.0, last.code)


def test_a_threshold_without_a_length_has_the_price_of_the_longest_chain() -> None:
    policies: list[TreePolicy] = [ConfidentChainPolicy(length=length, confidence=0.4) for length in (3, 8, 20)]
    rates = dict(zip(policies, (300.0, 200.0, 150.0), strict=True))
    known: dict[Staged, dict[tuple[int, int], float]] = {PLAIN: {PLACE: 100.0}}
    known |= {(policy, "small"): {PLACE: rate} for policy, rate in rates.items()}
    (dropped,) = of("openvino", plan_with(cell_with(*PLACE, policies[0], "small", 300.0)), known, "2025").dropped
    assert dropped.gets_tokens_per_s == 150.0


def test_where_prices_are_missing_every_cell_has_that_of_the_nearest_one_known_there() -> None:
    """One cell of a plan lists one lookup and the others another, both SGLang's one trie: none of them is lost."""
    near, other = lookup(4), lookup(3)
    places = [(1, 100), (4, 100), (8, 100)]
    cells = [cell_with(*place, near if place == places[0] else other, "lookup", 300.0) for place in places]
    known: dict[Staged, dict[tuple[int, int], float]] = {
        PLAIN: dict.fromkeys(places, 100.0),
        (near, "lookup"): {places[0]: 300.0},
        (other, "lookup"): dict.fromkeys(places[1:], 290.0),
    }
    rates = Rates(known=known, is_complete=False)
    found = export_plan(plan_with(*cells), ENGINES["sglang"], {}, target="large", version=None, rates=rates)
    assert {one.gets for one in found.dropped} == {f"NGRAM, priced as {near.code}"}
    assert [one.gets_tokens_per_s for one in found.dropped] == [300.0, 290.0, 290.0]


@pytest.mark.parametrize("engine", ["llama.cpp", "openvino"])
def test_a_drafter_whose_folder_is_called_as_the_target_s_is_converted_to_a_file_of_its_own(engine: str) -> None:
    drafter = replace(engine_drafter(), path="runs/draft/final")
    plan = plan_with(cell_with(*PLACE, ChainPolicy(length=3), "small", 200.0))
    known: dict[Staged, dict[tuple[int, int], float]] = {
        PLAIN: {PLACE: 100.0},
        (ChainPolicy(length=3), "small"): {PLACE: 200.0},
    }
    rates = Rates(known=known, is_complete=False)
    found = export_plan(
        plan, ENGINES[engine], {"small": drafter}, target="runs/target/final", version=None, rates=rates
    )
    written = "".join([found.command, *(text for _, text in found.files)])
    ending = {"llama.cpp": "gguf", "openvino": "openvino"}[engine]
    assert f"final.{ending}" in written and f"small-drafter.{ending}" in written
    assert any(
        f"runs/draft/final --engine {engine} --dtype float32 -o small-drafter.{ending}" in note for note in found.notes
    )
