"""The three solvers against enumeration of every hierarchy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.planner.hierarchy.latency import exact_latency
from spectune.planner.hierarchy.programmes import best_truncated_hierarchy, mean_field_hierarchy
from spectune.planner.hierarchy.records import Hierarchy, HierarchyInputs, ModelCosts, SinglePassDrafter
from spectune.planner.hierarchy.search import best_hierarchy

from ...support.hierarchy_oracles import (
    Reading,
    booked_ms_per_token,
    caterpillar,
    every_hierarchy,
    random_family,
    random_setup,
)

TARGET = ModelCosts(name="target", forward_ms=(0.0, *[1.0] * 40))


def closed_form(inputs: HierarchyInputs, hierarchy: Hierarchy) -> float:
    """The mean-field time per token, level by level."""
    reading, levels = Reading(inputs), hierarchy.levels
    if not levels:
        return reading.verify_ms(reading.target, "", 0)
    names = [*(level.name for level in levels), reading.target]
    ms = 0.0
    for place, (name, level) in enumerate(zip(names, [None, *levels], strict=True)):
        if level is None:
            if name in reading.blocks:
                ms = reading.blocks[name].draft_ms[levels[0].threshold] / levels[0].threshold
            else:
                ms = reading.verify_ms(name, "", 0)
            continue
        drafts = level.threshold
        if hierarchy.tree is not None and place == len(levels):
            tree = reading.trees[hierarchy.tree]
            tokens = tree.expected_tokens[drafts]
            verify_ms = reading.verify_ms(name, level.name, tree.verify_tokens[drafts] - 1) + tree.host_ms
        else:
            chances = [reading.chance(name, level.name, k) for k in range(1, drafts + 1)]
            tokens = 1.0 + float(np.cumprod(chances).sum())
            verify_ms = reading.verify_ms(name, level.name, drafts)
        ms = (drafts * ms + verify_ms) / tokens
    return ms


def setups(seed: int) -> HierarchyInputs:
    """Plain families on even seeds, all extensions on odd ones."""
    return random_setup(seed, 2, 7) if seed % 2 else random_family(seed, 3, 40)


@pytest.mark.parametrize("seed", range(12))
def test_the_mean_field_programme_equals_enumeration_of_the_closed_form(seed: int) -> None:
    inputs = setups(seed)
    found = mean_field_hierarchy(inputs, 4)
    assert found.ms_per_token == pytest.approx(closed_form(inputs, found.hierarchy), rel=1e-12)
    truth = min(closed_form(inputs, hierarchy) for hierarchy in every_hierarchy(inputs, 4))
    assert found.ms_per_token == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_the_exact_programme_equals_enumeration_of_truncated_hierarchies(seed: int) -> None:
    inputs = setups(seed)
    found = best_truncated_hierarchy(inputs, 4)
    truth = min(booked_ms_per_token(inputs, hierarchy, truncated=True) for hierarchy in every_hierarchy(inputs, 4))
    assert found.ms_per_token == pytest.approx(truth, rel=1e-12)
    assert exact_latency(inputs, found.hierarchy, truncated=True).ms_per_token == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_the_search_finds_the_best_of_all_hierarchies(seed: int) -> None:
    inputs = setups(seed)
    found = best_hierarchy(inputs, 4)
    truth = min(booked_ms_per_token(inputs, hierarchy) for hierarchy in every_hierarchy(inputs, 4))
    assert found.ms_per_token == pytest.approx(truth, rel=1e-12)
    assert exact_latency(inputs, found.hierarchy).ms_per_token == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_programme_bounds_the_search_at_constant_cost(seed: int) -> None:
    inputs = random_family(seed, 6, 80)
    assert best_hierarchy(inputs, 8).ms_per_token <= best_truncated_hierarchy(inputs, 8).ms_per_token + 1e-12


@pytest.mark.parametrize("solver", [mean_field_hierarchy, best_truncated_hierarchy, best_hierarchy])
class TestEverySolver:
    def test_decodes_plainly_where_there_is_no_drafter(self, solver) -> None:
        alone = HierarchyInputs(models=(TARGET,), acceptance=((),))
        assert solver(alone).hierarchy == Hierarchy() and solver(alone).ms_per_token == 1.0

    def test_decodes_plainly_where_drafts_are_never_accepted(self, solver) -> None:
        useless = HierarchyInputs(models=(replace(TARGET, name="draft"), TARGET), acceptance=((), (0.0,)))
        assert solver(useless).hierarchy == Hierarchy()

    def test_feeds_a_middle_model_from_a_lookup(self, solver) -> None:
        middle = ModelCosts(name="middle", forward_ms=(0.0, *[0.2] * 40))
        lookup = SinglePassDrafter(name="lookup", draft_ms=(0.0, *[0.001] * 8), acceptance={"middle": (0.8,) * 8})
        inputs = HierarchyInputs(models=(middle, TARGET), acceptance=((), (0.9,)), blocks=(lookup,))
        assert [level.name for level in solver(inputs).hierarchy.levels] == ["lookup", "middle"]

    def test_takes_a_tree_where_it_yields_more(self, solver) -> None:
        draft = ModelCosts(name="draft", forward_ms=(0.0, *[0.1] * 40))
        inputs = HierarchyInputs(models=(draft, TARGET), acceptance=((), (0.6,)))
        treed = replace(inputs, trees=(caterpillar("bush", "draft", 0.6, 0.2, 12),))
        assert solver(treed).hierarchy.tree == "bush"
        assert solver(treed).ms_per_token < solver(inputs).ms_per_token

    def test_skips_a_step_of_the_curve(self, solver) -> None:
        draft = ModelCosts(name="draft", forward_ms=(0.0, *[0.01] * 40))
        stepped = replace(TARGET, forward_ms=(0.0, *[1.0] * 4, *[4.0] * 36))
        inputs = HierarchyInputs(models=(draft, stepped), acceptance=((), (0.9,)))
        assert solver(inputs).hierarchy.levels[0].threshold == 3

    def test_handles_sixteen_models(self, solver) -> None:
        inputs = random_family(3, 15, 70)
        assert solver(inputs).ms_per_token < 1.0

    def test_keeps_its_most_drafts(self, solver) -> None:
        assert all(level.threshold <= 3 for level in solver(random_family(1, 4, 40), 3).hierarchy.levels)


def test_the_search_is_never_slower_than_what_it_starts_from() -> None:
    for seed in range(20):
        inputs = random_setup(seed, 5, 20)
        starts = [mean_field_hierarchy(inputs, 12).hierarchy, best_truncated_hierarchy(inputs, 12).hierarchy]
        rivals = [exact_latency(inputs, hierarchy).ms_per_token for hierarchy in (*starts, Hierarchy())]
        assert best_hierarchy(inputs, 12).ms_per_token <= min(rivals) + 1e-12
