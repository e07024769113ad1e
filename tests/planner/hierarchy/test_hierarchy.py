"""Hierarchies of drafters: the exact formula against play and bookkeeping, what it says, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from spectune.errors import PlanError
from spectune.planner.hierarchy.latency import exact_latency
from spectune.planner.hierarchy.records import (
    EdgeCosts,
    Hierarchy,
    HierarchyInputs,
    Level,
    ModelCosts,
    SinglePassDrafter,
    TopTree,
)

from ...support.hierarchy_oracles import (
    Play,
    booked_ms_per_token,
    caterpillar,
    every_hierarchy,
    random_family,
    random_setup,
)

Ints = NDArray[np.int64]

SMALL = ModelCosts(name="small", forward_ms=(0.0, *[0.1] * 40))
MIDDLE = ModelCosts(name="middle", forward_ms=(0.0, *[0.3] * 40))
TARGET = ModelCosts(name="target", forward_ms=(0.0, *[1.0] * 40))
THREE = HierarchyInputs(models=(SMALL, MIDDLE, TARGET), acceptance=((), (0.8,), (0.6, 0.75)))
LOOKUP = SinglePassDrafter(name="lookup", draft_ms=(0.0, 0.01, 0.01, 0.01), acceptance={"target": (0.5, 0.9, 0.9)})


def chain(*levels: tuple[str, int], tree: str | None = None) -> Hierarchy:
    return Hierarchy(levels=tuple(Level(name=name, threshold=threshold) for name, threshold in levels), tree=tree)


def some_hierarchies(inputs: HierarchyInputs, count: int, seed: int) -> list[Hierarchy]:
    every = [hierarchy for hierarchy in every_hierarchy(inputs, 4) if hierarchy.levels]
    chosen = np.random.default_rng(seed).choice(len(every), count, replace=False)
    return [every[place] for place in chosen]


def ms(inputs: HierarchyInputs, hierarchy: Hierarchy) -> float:
    return exact_latency(inputs, hierarchy).ms_per_token


@pytest.mark.thinned
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_formula_equals_playing_the_hierarchy(seed: int, truncated: bool) -> None:
    inputs = random_family(seed, 3, 40)
    (hierarchy,) = some_hierarchies(inputs, 1, seed)
    played, error = Play(inputs, hierarchy, seed, truncated=truncated).ms_per_token(20_000)
    assert abs(exact_latency(inputs, hierarchy, truncated=truncated).ms_per_token - played) < 4 * error


@pytest.mark.thinned
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_formula_equals_playing_blocks_steps_host_times_and_reuse(seed: int, truncated: bool) -> None:
    inputs = replace(random_setup(seed, 3, 12), trees=())
    (hierarchy,) = some_hierarchies(inputs, 1, seed)
    played, error = Play(inputs, hierarchy, seed, truncated=truncated).ms_per_token(20_000)
    assert abs(exact_latency(inputs, hierarchy, truncated=truncated).ms_per_token - played) < 4 * error


@pytest.mark.parametrize("seed", range(3))
def test_the_formula_equals_playing_a_tree_on_the_top_edge(seed: int) -> None:
    first, second = 0.6, 0.2

    def walk(drafts: Ints, random: np.random.Generator) -> Ints:
        tokens, alive = np.ones(len(drafts), dtype=np.int64), np.ones(len(drafts), dtype=bool)
        for place in range(1, int(drafts.max()) + 1):
            coin = random.random(len(drafts))
            alive &= drafts >= place
            tokens += alive & (coin < first + second)
            alive &= coin < first
        return tokens

    inputs = replace(THREE, trees=(caterpillar("bush", "middle", first, second, 8),))
    hierarchy = chain(("small", 3), ("middle", 4), tree="bush")
    played, error = Play(inputs, hierarchy, seed).ms_per_token(20_000, walk)
    assert abs(ms(inputs, hierarchy) - played) < 4 * error


@pytest.mark.thinned
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_formula_equals_bookkeeping_of_every_outcome(seed: int, truncated: bool) -> None:
    inputs = random_setup(seed, 3, 9)
    for hierarchy in some_hierarchies(inputs, 25, seed):
        booked = booked_ms_per_token(inputs, hierarchy, truncated=truncated)
        assert exact_latency(inputs, hierarchy, truncated=truncated).ms_per_token == pytest.approx(booked, rel=1e-12)


@pytest.mark.parametrize("drafts", [1, 2, 5, 9])
def test_one_drafter_costs_what_leviathan_says(drafts: int) -> None:
    expected = (drafts * 0.1 + 1.0) * (1 - 0.6) / (1 - 0.6 ** (drafts + 1))
    assert ms(THREE, chain(("small", drafts))) == pytest.approx(expected)


def test_without_drafters_a_token_costs_a_forward_of_the_target() -> None:
    assert ms(THREE, Hierarchy()) == 1.0


def test_a_drafter_that_is_always_right_fills_every_draft() -> None:
    sure = replace(THREE, acceptance=((), (1.0,), (1.0, 1.0)))
    assert ms(sure, chain(("small", 2), ("middle", 6))) == pytest.approx((2 * (0.2 + 0.3) + 1.0) / 7)


@pytest.mark.parametrize("seed", range(10))
def test_keeping_the_overshoot_never_loses_at_constant_cost(seed: int) -> None:
    inputs = random_family(seed, 3, 40)
    for hierarchy in some_hierarchies(inputs, 10, seed):
        assert ms(inputs, hierarchy) <= exact_latency(inputs, hierarchy, truncated=True).ms_per_token + 1e-12


@pytest.mark.parametrize("truncated", [False, True])
def test_the_levels_forwards_are_those_of_play(truncated: bool) -> None:
    hierarchy = chain(("small", 3), ("middle", 5))
    play = Play(THREE, hierarchy, 0, truncated=truncated)
    play.ms_per_token(40_000)
    *levels, target = exact_latency(THREE, hierarchy, truncated=truncated).levels
    assert target.forwards_per_token == pytest.approx(40_000 / play.tokens, rel=0.01)
    for level in levels:
        assert level.forwards_per_token == pytest.approx(play.forwards[level.name] / play.tokens, rel=0.01)


def test_the_levels_shares_add_up_to_the_whole() -> None:
    inputs = replace(THREE, blocks=(replace(LOOKUP, acceptance={"middle": (0.5, 0.9, 0.9)}),))
    latency = exact_latency(inputs, chain(("lookup", 3), ("middle", 5)))
    assert sum(level.share for level in latency.levels) == pytest.approx(1.0)
    assert sum(level.ms_per_token for level in latency.levels) == pytest.approx(latency.ms_per_token)


def test_the_levels_say_rounds_and_tokens() -> None:
    source, middle, target = exact_latency(THREE, chain(("small", 2), ("middle", 1))).levels
    assert (source.threshold, source.tokens_per_call, source.rounds_per_call) == (2, 2.0, 1.0)
    assert middle.rounds_per_call == 1.0 and middle.tokens_per_call == pytest.approx(1 + 0.8 + 0.64)
    assert target.threshold is None and target.tokens_per_call * target.forwards_per_token == pytest.approx(1.0)


def test_a_draft_longer_than_its_verifier_takes_is_cut() -> None:
    short = replace(THREE, models=(SMALL, MIDDLE, replace(TARGET, forward_ms=(0.0, *[1.0] * 4))))
    hierarchy = chain(("small", 3), ("middle", 3))
    assert ms(short, hierarchy) == pytest.approx(exact_latency(THREE, hierarchy, truncated=True).ms_per_token)


def test_host_time_is_added_to_every_forward() -> None:
    slow = replace(THREE, models=(replace(SMALL, host_ms=0.05), MIDDLE, replace(TARGET, host_ms=0.2)))
    expected = (3 * 0.15 + 1.2) / (1 + 0.6 + 0.36 + 0.216)
    assert ms(slow, chain(("small", 3))) == pytest.approx(expected)


def test_an_edge_s_own_costs_hold_for_that_edge_alone() -> None:
    reused = replace(THREE, edges=(EdgeCosts(verifier="target", drafter="middle", forward_ms=(0.0, *[0.7] * 40)),))
    assert ms(reused, chain(("middle", 2))) == pytest.approx((0.6 + 0.7) / (1 + 0.75 + 0.75**2))
    assert ms(reused, chain(("small", 2))) == ms(THREE, chain(("small", 2)))


def test_a_block_is_drafted_in_one_act_and_accepted_place_by_place() -> None:
    inputs = replace(THREE, blocks=(LOOKUP,))
    assert ms(inputs, chain(("lookup", 3))) == pytest.approx(1.01 / (1 + 0.5 + 0.45 + 0.405))


def test_a_tree_yields_and_feeds_what_it_says() -> None:
    tree = TopTree(name="bush", drafter="small", expected_tokens=(1.0, 1.7, 2.2), verify_tokens=(1, 4, 7), host_ms=0.5)
    inputs = replace(THREE, trees=(tree,))
    assert ms(inputs, chain(("small", 2), tree="bush")) == pytest.approx((0.2 + 1.0 + 0.5) / 2.2)


def test_steps_and_inversions_of_a_curve_are_priced_as_measured() -> None:
    stepped = replace(THREE, models=(SMALL, MIDDLE, replace(TARGET, forward_ms=(0.0, 1.0, 1.1, 3.0, 1.2))))
    assert ms(stepped, chain(("small", 2))) > ms(stepped, chain(("small", 3)))
    assert ms(stepped, chain(("small", 3))) == pytest.approx((0.3 + 1.2) / (1 + 0.6 + 0.36 + 0.216))


@pytest.mark.parametrize(
    ("hierarchy", "message"),
    [
        (chain(("nobody", 2)), "no drafter is called"),
        (chain(("target", 2)), "no drafter is called"),
        (chain(("middle", 2), ("small", 2)), "smallest first"),
        (chain(("small", 2), ("lookup", 2)), "smallest first"),
        (chain(("lookup", 2), ("middle", 2)), "smallest first"),
        (chain(("lookup", 4)), "takes 3"),
        (chain(("small", 40)), "takes 39"),
        (chain(("small", 2), tree="oak"), "cannot verify small in oak"),
    ],
)
def test_hierarchies_that_do_not_fit_are_refused(hierarchy: Hierarchy, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        exact_latency(replace(THREE, blocks=(LOOKUP,)), hierarchy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ()}, "needs a target"),
        ({"models": (SMALL, SMALL, TARGET)}, "different names"),
        ({"acceptance": ((), (0.8,))}, "a row per model"),
        ({"acceptance": ((), (1.2,), (0.6, 0.7))}, r"\[0, 1\]"),
        ({"edges": (EdgeCosts(verifier="oak", drafter="small", forward_ms=(0.0, 1.0)),)}, "oak"),
        ({"trees": (caterpillar("bush", "oak", 0.5, 0.1, 2),)}, "oak"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(THREE, **change)  # type: ignore[arg-type]


def test_an_edge_against_the_order_is_refused() -> None:
    wrong = replace(THREE, edges=(EdgeCosts(verifier="small", drafter="middle", forward_ms=(0.0, 1.0)),))
    with pytest.raises(PlanError, match="smallest first"):
        ms(wrong, Hierarchy())


def test_a_tree_of_more_tokens_than_were_timed_is_refused() -> None:
    with pytest.raises(PlanError, match="feeds 61 tokens"):
        ms(replace(THREE, trees=(caterpillar("bush", "small", 0.5, 0.1, 30),)), Hierarchy())


@pytest.mark.parametrize("curve", [(), (0.0,), (0.0, -1.0), (0.0, float("inf"))])
def test_curves_without_usable_times_are_refused(curve: tuple[float, ...]) -> None:
    with pytest.raises(PlanError, match="forwards of small"):
        ModelCosts(name="small", forward_ms=curve)
