"""Acceptance by rank and depth against closed forms, counts by hand, and the same trace read the other way."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.profiler.rank_depth import RankDepth, path_ranks, rank_depth_acceptance
from spectune.profiler.records.acceptance import MISS, AcceptanceTrace

from .chain_traces import rooted, trace_of
from .synthetic import Language, SkilledDrafter, every_node, record, texts


@cache
def independent() -> AcceptanceTrace:
    """Every token is the drafter's first with probability 0.6, its second with 0.2, none with 0.2."""
    source = np.random.default_rng(5)
    prompts = [rooted(source.choice([0, 1, MISS], 300, p=[0.6, 0.2, 0.2]).tolist()) for _ in range(40)]
    return trace_of(*prompts, prefix_exact=True)


@cache
def found() -> RankDepth:
    return rank_depth_acceptance(independent(), depths=4, ranks=2)


def test_conditional_acceptance_of_independent_tokens_is_the_same_at_every_depth() -> None:
    np.testing.assert_allclose(found().conditional.values, [[0.6, 0.2]] * 4, atol=0.02)


def test_unconditional_acceptance_falls_with_the_chance_of_getting_there() -> None:
    wanted = [[0.6 * 0.8**depth, 0.2 * 0.8**depth] for depth in range(4)]
    np.testing.assert_allclose(found().unconditional.values, wanted, atol=0.02)


@pytest.mark.parametrize("which", ["conditional", "unconditional"])
def test_intervals_of_99_percent_hold_the_truth(which: str) -> None:
    truth = np.array([[0.6, 0.2]] * 4)
    if which == "unconditional":
        truth = truth * 0.8 ** np.arange(4)[:, None]
    rates = getattr(rank_depth_acceptance(independent(), depths=4, ranks=2, level=0.99), which)
    assert ((rates.low <= truth) & (truth <= rates.high)).all()
    assert (rates.high - rates.low).max() < 0.1
    assert ((rates.low < rates.values) & (rates.values < rates.high)).all()


def test_counts_by_hand() -> None:
    trace = trace_of(rooted([0, 1, 2, 0]), rooted([MISS, 0]), prefix_exact=True)
    rates = rank_depth_acceptance(trace, depths=3, ranks=2)
    assert rates.unconditional.counts.tolist() == [6, 4, 2]
    assert rates.conditional.counts.tolist() == [6, 2, 1]  # behind a rank of 2 the two best lose the path
    assert rates.unconditional.values.tolist() == [[3 / 6, 1 / 6], [0.0, 1 / 4], [0.0, 0.0]]
    assert rates.conditional.values.tolist() == [[3 / 6, 1 / 6], [0.0, 1 / 2], [0.0, 0.0]]


def test_prompts_that_are_all_alike_leave_nothing_uncertain() -> None:
    rates = rank_depth_acceptance(trace_of(*[rooted([0, 1, 0])] * 5, prefix_exact=True), depths=2, ranks=3)
    assert rates.conditional.low.tolist() == rates.conditional.values.tolist() == rates.conditional.high.tolist()


def test_a_depth_nobody_reached_has_no_value_and_an_open_interval() -> None:
    rates = rank_depth_acceptance(trace_of(rooted([MISS, MISS]), rooted([MISS, MISS]), prefix_exact=True), 2, 1)
    assert np.isnan(rates.conditional.values[1, 0])
    assert (rates.conditional.low[1, 0], rates.conditional.high[1, 0]) == (0.0, 1.0)
    assert rates.unconditional.values[1, 0] == 0.0


def test_the_same_seed_gives_the_same_intervals() -> None:
    again = rank_depth_acceptance(independent(), depths=4, ranks=2)
    assert np.array_equal(again.conditional.low, found().conditional.low)
    other = rank_depth_acceptance(independent(), depths=4, ranks=2, seed=1)
    assert not np.array_equal(other.conditional.low, found().conditional.low)


def test_recorded_trees_tell_the_same_as_roots_where_the_drafter_reads_only_committed_text() -> None:
    language = Language(3)
    trace = record(SkilledDrafter(language, 0.7), texts(language, 3, lambda text: 15), every_node(3, 3))
    for prompt in trace.prompts:
        by_roots, by_trees = path_ranks(prompt, 4, True), path_ranks(prompt, 4, False)
        for roots, trees in zip(by_roots.tolist(), by_trees.tolist(), strict=True):
            known = next((depth for depth, rank in enumerate(roots) if rank == MISS), 3) + 1
            assert trees[:known] == roots[:known]
            assert set(trees[known:]) <= {-1}


@pytest.mark.parametrize(("depths", "ranks", "level"), [(0, 1, 0.9), (1, 4, 0.9), (1, 0, 0.9), (1, 1, 1.0)])
def test_impossible_requests_are_refused(depths: int, ranks: int, level: float) -> None:
    with pytest.raises(MeasurementError):
        rank_depth_acceptance(independent(), depths, ranks, level=level)


def test_one_prompt_has_no_interval() -> None:
    with pytest.raises(MeasurementError, match="at least 2"):
        rank_depth_acceptance(trace_of(rooted([0, 0]), prefix_exact=True), 1, 1)
