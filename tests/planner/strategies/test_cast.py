"""CAST's tree: its limits, its symmetries, and a slow version of the whole procedure."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.profiler.records.calibration import SurvivalCurve

from ...support.toy_drafter import ToyDrafter, drafted_paths, toy_scorer

Path = tuple[int, ...]
SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)
OPEN = CastPolicy(
    breadth=0.0,
    depth=0.0,
    rerank=0.0,
    max_width=4,
    max_depth=3,
    max_verify_tokens=12,
    ratio_window=2,
    draft_cost_ms=(0.0, 0.10, 0.12, 0.13, 0.17),
    verify_cost_ms=(0.0, *(1.0 + 0.03 * tokens for tokens in range(12))),
)


SURE, UNSURE = (
    SurvivalCurve(log_probs=(-6.0, -2.0, -0.1), survivals=survivals, nodes=9)
    for survivals in ((0.1, 0.6, 1.0), (0.0, 0.2, 0.5))
)
Scored = dict[Path, np.float32]


def best_index(gains: list[float], costs: list[float], threshold: float) -> int:
    """Return the largest arg-max of the summed gains less threshold times cost."""
    worth = [(sum(gains[: k + 1]) - threshold * cost, k) for k, cost in enumerate(costs[: len(gains)])]
    return max(worth)[1]


def ranked(found: Scored) -> list[Path]:
    return sorted(found, key=lambda path: -found[path])


def worth(path: Path, score: np.float32, survival: tuple[SurvivalCurve, ...]) -> float:
    """Return the path probability, or its survival by the curve of its depth, drawn by hand."""
    if not survival:
        return float(np.exp(np.float64(score)))
    curve = survival[min(len(path), len(survival)) - 1]
    xs, ys = [-np.inf, *curve.log_probs, np.inf], [curve.survivals[0], *curve.survivals, curve.survivals[-1]]
    for left, right, low, high in zip(xs, xs[1:], ys, ys[1:], strict=False):
        if left < score <= right:
            return low if low == high else low + (high - low) * (float(score) - left) / (right - left)
    raise AssertionError(score)


def mean_worths(batch: list[Scored], most: int, survival: tuple[SurvivalCurve, ...]) -> list[float]:
    """Return the batch mean of the worth of the most probable path, of the second, ..."""
    rows = [[worth(path, found[path], survival) for path in ranked(found)[:most]] for found in batch]
    return [sum(column) / len(batch) for column in zip(*rows, strict=True)]


def grown_layer(drafter: ToyDrafter, frontier: Scored, children: int) -> Scored:
    return {
        (*path, token): np.float32(score + log_prob)
        for path, score in frontier.items()
        for token, log_prob in drafter.best(path, children)
    }


def recorded_by_dictionary(drafters: list[ToyDrafter], policy: CastPolicy) -> list[Scored]:
    """Return every sequence's recorded nodes after breadth and depth pruning."""
    draft = [cost / policy.verify_cost_ms[1] for cost in policy.draft_cost_ms]
    origin = min(max(2 * draft[1] - draft[2], 0.0), draft[1])
    recorded: list[Scored] = [{} for _ in drafters]
    frontiers: list[Scored] = [{(): np.float32(0.0)} for _ in drafters]
    ratios, utilities = [1.0], []
    for _ in range(policy.max_depth):
        layers = [grown_layer(*pair, policy.max_width) for pair in zip(drafters, frontiers, strict=True)]
        recorded = [found | layer for found, layer in zip(recorded, layers, strict=True)]
        gains = mean_worths(layers, policy.max_width, policy.survival)
        width = max(1, best_index([0.0, *gains], [origin, *draft[1:]], policy.breadth))
        utilities.append(sum(gains[:width]))
        ratios += [later / earlier if earlier else 0.0 for earlier, later in pairwise(utilities[-2:])]
        window = ratios[-policy.ratio_window :]
        if sum(window) / len(window) * utilities[-1] / draft[width] < policy.depth:
            break
        frontiers = [{path: layer[path] for path in ranked(layer)[:width]} for layer in layers]
    return recorded


def trees_by_dictionary(drafters: list[ToyDrafter], policy: CastPolicy) -> list[list[Path]]:
    """Return every sequence's tree, nodes in recorded order."""
    recorded = recorded_by_dictionary(drafters, policy)
    gains = mean_worths(recorded, policy.max_verify_tokens - 1, policy.survival)
    costs = [cost / policy.verify_cost_ms[1] for cost in policy.verify_cost_ms[1:]]
    drafts = best_index([1.0, *gains], costs, policy.rerank)
    chosen = [set(ranked(found)[:drafts]) for found in recorded]
    return [[(), *(path for path in found if path in keep)] for found, keep in zip(recorded, chosen, strict=True)]


@st.composite
def cast_policies(draw: st.DrawFn) -> CastPolicy:
    steps = np.random.default_rng(draw(st.integers(0, 10**6)))
    return replace(
        OPEN,
        breadth=draw(st.floats(0.01, 12.0)),
        depth=draw(st.floats(0.01, 12.0)),
        rerank=draw(st.floats(0.01, 12.0)),
        ratio_window=draw(st.integers(1, 3)),
        draft_cost_ms=(0.0, *(0.05 + steps.random(4) / 10).tolist()),  # inversions included
        verify_cost_ms=(0.0, *(1.0 + steps.random(12) / 4).tolist()),
        survival=draw(st.sampled_from([(), (SURE,), (SURE, UNSURE)])),
    )


@given(cast_policies(), SEEDS)
def test_the_trees_equal_the_dictionary_version(policy: CastPolicy, seeds: list[int]) -> None:
    draft = grow(policy, toy_scorer(*seeds), len(seeds))
    truth = trees_by_dictionary([ToyDrafter(seed, 6) for seed in seeds], policy)
    assert [drafted_paths(draft, row) for row in range(len(seeds))] == truth


@given(
    SEEDS,
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(2, 60),
    st.sampled_from([None, 1, 2]),
)
def test_zero_thresholds_give_the_tree_of_eagle_2(
    seeds: list[int], width: int, layers: int, tokens: int, levels: int | None
) -> None:
    policy = replace(
        OPEN, max_width=width, max_depth=layers, max_verify_tokens=tokens, verify_cost_ms=(0.0, *[1.0] * tokens)
    )
    eagle = Eagle2Policy(verify_tokens=tokens, depth=layers - 1, top_k=width)
    cast_draft = grow(policy, toy_scorer(*seeds, levels=levels), len(seeds))
    eagle_draft = grow(eagle, toy_scorer(*seeds, levels=levels), len(seeds))
    for field in ("tokens", "parents", "depths", "sizes"):
        assert np.array_equal(getattr(cast_draft, field), getattr(eagle_draft, field))
    assert cast_draft.widths == eagle_draft.widths


def test_zero_thresholds_give_the_published_tree_of_eagle_2() -> None:
    policy = replace(
        OPEN,
        max_width=10,
        max_depth=8,
        max_verify_tokens=60,
        draft_cost_ms=(0.0, *[0.1] * 10),
        verify_cost_ms=(0.0, *[1.0] * 60),
    )
    draft = grow(policy, toy_scorer(1, 2, vocabulary=12), 2)
    eagle = grow(Eagle2Policy(), toy_scorer(1, 2, vocabulary=12), 2)
    assert [drafted_paths(draft, row) for row in (0, 1)] == [drafted_paths(eagle, row) for row in (0, 1)]


@given(SEEDS, st.floats(0.0, 50.0))
def test_a_flat_verify_cost_keeps_every_node_allowed(seeds: list[int], threshold: float) -> None:
    policy = replace(OPEN, rerank=threshold, verify_cost_ms=(0.0, *[2.0] * 12))
    assert grow(policy, toy_scorer(*seeds), len(seeds)).sizes.tolist() == [12] * len(seeds)


@given(SEEDS, st.floats(0.0, 50.0))
def test_a_flat_draft_cost_keeps_every_width_allowed(seeds: list[int], threshold: float) -> None:
    policy = replace(OPEN, breadth=threshold, draft_cost_ms=(0.0, *[0.1] * 4))
    assert grow(policy, toy_scorer(*seeds), len(seeds)).widths == (1, 4, 4)


@given(SEEDS)
def test_a_steep_verify_cost_keeps_the_root_alone(seeds: list[int]) -> None:
    policy = replace(OPEN, rerank=1.0, verify_cost_ms=(0.0, *(1.0 + 100.0 * k for k in range(12))))
    assert grow(policy, toy_scorer(*seeds), len(seeds)).sizes.tolist() == [1] * len(seeds)


@given(SEEDS)
def test_a_steep_draft_cost_expands_one_node_per_layer(seeds: list[int]) -> None:
    policy = replace(OPEN, breadth=1.0, draft_cost_ms=(0.0, 100.0, 200.0, 300.0, 400.0))
    assert grow(policy, toy_scorer(*seeds), len(seeds)).widths == (1, 1, 1)


@given(SEEDS, st.lists(st.floats(0.0, 20.0), min_size=2, max_size=5))
def test_the_size_never_grows_with_its_threshold(seeds: list[int], thresholds: list[float]) -> None:
    policies = [replace(OPEN, rerank=threshold) for threshold in sorted(thresholds)]
    sizes = [int(grow(policy, toy_scorer(*seeds), len(seeds)).sizes[0]) for policy in policies]
    assert sizes == sorted(sizes, reverse=True)


@given(SEEDS, st.lists(st.floats(0.0, 20.0), min_size=2, max_size=5))
def test_no_width_grows_with_its_threshold(seeds: list[int], thresholds: list[float]) -> None:
    policies = [replace(OPEN, breadth=threshold) for threshold in sorted(thresholds)]
    widths = [grow(policy, toy_scorer(*seeds), len(seeds)).widths for policy in policies]
    assert all(wide >= narrow for upper, lower in pairwise(widths) for wide, narrow in zip(upper, lower, strict=True))


@given(SEEDS, st.lists(st.floats(0.0, 20.0), min_size=2, max_size=5))
def test_the_layers_never_grow_with_their_threshold(seeds: list[int], thresholds: list[float]) -> None:
    policies = [replace(OPEN, depth=threshold) for threshold in sorted(thresholds)]
    forwards = [len(grow(policy, toy_scorer(*seeds), len(seeds)).widths) for policy in policies]
    assert forwards == sorted(forwards, reverse=True)


SLOPES = st.lists(st.floats(0.0, 2.0), min_size=2, max_size=5)


@given(SEEDS, SLOPES)
def test_the_size_never_grows_with_the_slope_of_the_verify_cost(seeds: list[int], slopes: list[float]) -> None:
    policies = [
        replace(OPEN, rerank=1.0, verify_cost_ms=(0.0, *(1.0 + slope * k for k in range(12))))
        for slope in sorted(slopes)
    ]
    sizes = [int(grow(policy, toy_scorer(*seeds), len(seeds)).sizes[0]) for policy in policies]
    assert sizes == sorted(sizes, reverse=True)


@given(SEEDS, SLOPES)
def test_no_width_grows_with_the_slope_of_the_draft_cost(seeds: list[int], slopes: list[float]) -> None:
    policies = [
        replace(OPEN, breadth=1.0, draft_cost_ms=(0.0, *(0.1 + slope * k for k in range(4))))
        for slope in sorted(slopes)
    ]
    widths = [grow(policy, toy_scorer(*seeds), len(seeds)).widths for policy in policies]
    assert all(wide >= narrow for upper, lower in pairwise(widths) for wide, narrow in zip(upper, lower, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_the_rerank_threshold_that_equals_the_speed_up_keeps_the_fastest_size(seed: int) -> None:
    """R(m) = (1 + U_m) T(1) / (draft + T(m)); Dinkelbach's fixed point is its arg-max over all m."""
    steps = np.random.default_rng(seed)
    verify = 1.0 + np.concatenate(([0.0], (0.4 * steps.random(11) ** 4).cumsum()))  # tile steps
    policy, draft_cost = replace(OPEN, verify_cost_ms=(0.0, *verify.tolist())), 0.3 + steps.random()
    (found,) = recorded_by_dictionary([ToyDrafter(seed, 6)], policy)
    tokens = np.cumsum([1.0, *mean_worths([found], 11, ())])
    speed_up = 0.0
    for _ in range(12):
        size = int(grow(replace(policy, rerank=speed_up), toy_scorer(seed), 1).sizes[0])
        speed_up = float(tokens[size - 1] / (draft_cost + verify[size - 1]))
    assert speed_up == pytest.approx(float(np.max(tokens / (draft_cost + verify))))


@given(cast_policies(), st.floats(0.5, 12.0))
def test_survival_that_follows_the_path_probability_changes_nothing_but_rounding(
    policy: CastPolicy, seed: float
) -> None:
    grid = np.linspace(-40.0, 0.0, 4001)
    own = SurvivalCurve(log_probs=tuple(grid.tolist()), survivals=tuple(np.exp(grid).tolist()), nodes=1)
    plain, same = (replace(policy, survival=survival) for survival in ((), (own,)))
    sizes = [int(grow(either, toy_scorer(int(seed * 1000)), 1).sizes[0]) for either in (plain, same)]
    assert abs(sizes[0] - sizes[1]) <= 1


def test_nothing_that_survives_leaves_the_root_alone() -> None:
    nothing = SurvivalCurve(log_probs=(-1.0,), survivals=(0.0,), nodes=1)
    draft = grow(replace(OPEN, rerank=1.0, depth=0.1, survival=(nothing,)), toy_scorer(1, 2), 2)
    assert draft.sizes.tolist() == [1, 1] and draft.widths == (1,)


def test_survival_decides_how_many_and_the_drafter_which() -> None:
    policy = replace(OPEN, rerank=9.0, survival=(UNSURE,))
    draft, every = grow(policy, toy_scorer(5), 1), grow(replace(policy, rerank=0.0), toy_scorer(5), 1)
    (found,) = recorded_by_dictionary([ToyDrafter(5, 6)], policy)
    size = int(draft.sizes[0])
    assert 1 < size < every.sizes[0]
    assert set(drafted_paths(draft)[1:]) == set(ranked(found)[: size - 1])


@given(cast_policies(), st.integers(0, 10**6), st.sampled_from([2, 4]))
def test_identical_sequences_get_the_tree_of_one(policy: CastPolicy, seed: int, batch: int) -> None:
    draft = grow(policy, toy_scorer(*[seed] * batch), batch)
    alone = grow(policy, toy_scorer(seed), 1)
    assert [drafted_paths(draft, row) for row in range(batch)] == [drafted_paths(alone)] * batch


@given(cast_policies(), SEEDS, st.sampled_from([0.001, 0.5, 3.0, 1000.0]))
def test_the_unit_of_time_changes_nothing(policy: CastPolicy, seeds: list[int], factor: float) -> None:
    slower = replace(
        policy,
        draft_cost_ms=tuple(cost * factor for cost in policy.draft_cost_ms),
        verify_cost_ms=tuple(cost * factor for cost in policy.verify_cost_ms),
    )
    draft, scaled = (grow(either, toy_scorer(*seeds), len(seeds)) for either in (policy, slower))
    assert np.array_equal(draft.tokens, scaled.tokens) and draft.widths == scaled.widths


@pytest.mark.parametrize(("nudge", "width"), [(1 - 1e-6, 3), (1 + 1e-6, 2)])
def test_breadth_turns_at_the_threshold_of_theorem_4_1(nudge: float, width: int) -> None:
    slope, scores = 0.02, toy_scorer(1, 2).root(4).log_probs[:, 0].astype(np.float64)
    threshold = float(np.exp(scores[:, 2]).mean() / slope)  # K = 3; plain decoding costs 1 ms
    linear = (0.0, *(0.1 + slope * k for k in range(1, 5)))
    draft = grow(replace(OPEN, breadth=threshold * nudge, draft_cost_ms=linear), toy_scorer(1, 2), 2)
    assert draft.widths[1] == width


@pytest.mark.parametrize(("window", "layers"), [(1, 3), (2, 3), (3, 4)])
def test_the_depth_rule_averages_the_last_ratios_from_one_on(window: int, layers: int) -> None:
    """Two equal tokens, width 1: u = 2^-i, ratios 1, .5, .5; layer 3 predicts mean * .125 against .07."""
    policy = replace(
        OPEN,
        depth=0.07,
        max_width=1,
        max_depth=6,
        ratio_window=window,
        draft_cost_ms=(0.0, 1.0),
    )
    draft = grow(policy, toy_scorer(1, vocabulary=2, levels=1), 1)
    assert len(draft.widths) == layers


def test_no_ratio_is_carried_to_the_next_round() -> None:
    policy = replace(OPEN, depth=1.0)
    first, second = (grow(policy, toy_scorer(3), 1) for _ in range(2))
    assert drafted_paths(first) == drafted_paths(second)
