"""Shares of a trace against a count of the same events by hand, and their intervals against scipy."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy.stats import bootstrap

from spectune.profiler.records.acceptance import MISS, AcceptanceTrace
from spectune.report.trace import count_hits, share_of

from ..support.chain_traces import rooted, trace_of
from ..support.synthetic import Language, Nodes, SkilledDrafter, every_node, record, texts

LANGUAGE = Language(seed=3)
DRAFTER = SkilledDrafter(LANGUAGE, 0.6)
PAIRS = texts(LANGUAGE, 5, lambda place: 7 + place)
CHILDREN = 3
BUSHY = every_node(3, 2)
NARROW: Nodes = [(), (0,), (0, 0), (0, 0, 1)]


def trace(nodes: Nodes) -> AcceptanceTrace:
    return record(DRAFTER, PAIRS, nodes, children=CHILDREN)


def counted(nodes: Nodes, depth: int) -> tuple[list[list[int]], list[int]]:
    """Walk every position's true text down to a depth, while the tree holds it; count the rank that comes next."""
    hits, positions = [], []
    for prompt, text in PAIRS:
        ranks = [0] * CHILDREN
        tried = 0
        for now in range(1, len(text) - depth):
            walked = [rank_of(prompt + text[: now + step], text[now + step]) for step in range(depth + 1)]
            if tuple(walked[:-1]) in nodes:
                tried += 1
                if walked[-1] < CHILDREN:
                    ranks[walked[-1]] += 1
        hits.append(ranks)
        positions.append(tried)
    return hits, positions


def rank_of(tokens: tuple[int, ...], following: int) -> int:
    return [token for token, _ in DRAFTER.best(tokens, 8)].index(following)


@pytest.mark.parametrize("nodes", [BUSHY, NARROW], ids=["bushy", "narrow"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_counts_equal_a_walk_along_every_text(nodes: Nodes, depth: int) -> None:
    found = count_hits(trace(nodes))
    hits, positions = counted(nodes, depth)
    assert found.hits[:, depth].tolist() == hits
    assert found.positions[:, depth].tolist() == positions


def test_counts_end_where_no_tree_holds_the_text() -> None:
    assert count_hits(trace([()])).positions.shape == (len(PAIRS), 1)


def test_a_long_text_takes_no_more_memory_than_its_recording() -> None:
    long = trace_of(rooted([0, 1, MISS, 0] * 1000))  # its square is 128 MB
    tracemalloc.start()
    found = count_hits(long)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.positions.tolist() == [[4000]]
    assert peak < 2e6


def test_shares_at_the_root_are_those_of_the_trace() -> None:
    found, recorded = count_hits(trace(BUSHY)), trace(BUSHY)
    shares = found.hits[:, 0].sum(axis=0) / found.positions[:, 0].sum()
    assert shares.tolist() == pytest.approx(recorded.rank_acceptance().tolist())


def test_an_interval_over_prompts_is_scipy_s() -> None:
    rng = np.random.default_rng(4)
    positions = rng.integers(20, 200, 40)
    hits = rng.binomial(positions, rng.beta(6, 3, 40))
    theirs = bootstrap(
        (hits, positions),
        lambda hit, position, axis: hit.sum(axis=axis) / position.sum(axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",
        rng=rng,
    ).confidence_interval
    share = share_of(hits, positions, rng)
    assert share.value == hits.sum() / positions.sum()
    assert (share.low, share.high) == pytest.approx((theirs.low, theirs.high), abs=0.006)


def test_an_interval_of_one_prompt_is_wilson_s() -> None:
    share = share_of(np.array([30]), np.array([40]), np.random.default_rng(0))
    p, n, z = 0.75, 40, 1.959963984540054
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (share.low, share.high) == pytest.approx((middle - half, middle + half))


def test_prompts_without_a_position_do_not_make_a_share_undefined() -> None:
    share = share_of(np.array([0, 3]), np.array([0, 4]), np.random.default_rng(0))
    assert (share.value, share.low, share.high) == (0.75, 0.75, 0.75)


def test_the_same_generator_gives_the_same_interval() -> None:
    hits, positions = np.array([3, 9, 1]), np.array([5, 10, 7])
    assert share_of(hits, positions, np.random.default_rng(1)) == share_of(hits, positions, np.random.default_rng(1))
