"""Compiled sweeps against growing every policy at every position, on whole and on truncated recordings."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectune.planner.lockstep import replay_results
from spectune.planner.records.recording import RecordedScorer, Recording, Text, recording_of
from spectune.planner.records.results import PositionResults
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow, results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy, confident_chain_results
from spectune.planner.strategies.eagle2 import Eagle2Policy, eagle2_results
from spectune.planner.strategies.grown import replay_grown
from spectune.planner.strategies.lookup import Occurrence, find_continuation, lookup_results
from spectune.planner.strategies.opt_tree import OptTreePolicy, opt_tree_results
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy, talon_results

from ...support.synthetic import Best, Language, Nodes, SkilledDrafter, every_node, record, texts

CHILDREN, DEPTH = 4, 4
SEEDS = range(4)


@dataclass(frozen=True)
class CoarseDrafter(SkilledDrafter):
    """Says few different confidences, so that equal path scores abound."""

    def best(self, tokens: tuple[int, ...], count: int) -> Best:
        best = super().best(tokens, count)
        return [(token, np.float32(np.round(score))) for token, score in best]


def drafter(seed: int) -> SkilledDrafter:
    kind = CoarseDrafter if seed % 2 else SkilledDrafter
    return kind(Language(seed), skill=(0.3, 0.6, 0.8)[seed % 3], seed=seed)


@cache
def whole(seed: int, *, prefix_exact: bool = True) -> Recording:
    return recording(seed, every_node(DEPTH, CHILDREN), prefix_exact=prefix_exact)


@cache
def truncated(seed: int, *, from_rank: int = 0) -> Recording:
    """Return the same with nodes of some rank or a worse one lost by chance, and all below them."""
    source = random.Random(seed)
    kept: Nodes = [()]
    for node in every_node(DEPTH, CHILDREN)[1:]:
        if node[:-1] in kept and (node[-1] < from_rank or source.random() < 0.8):
            kept.append(node)
    return recording(seed, kept)


def recording(seed: int, nodes: Nodes, *, prefix_exact: bool = True) -> Recording:
    pairs = texts(Language(seed), 5, lambda text: (6, 11, 3, 8, 2)[text])
    return recording_of(record(drafter(seed), pairs, nodes, children=CHILDREN, prefix_exact=prefix_exact))


@dataclass(frozen=True)
class Grown:
    """What one policy's tree at one position is."""

    accepted: int
    size: int
    widths: tuple[int, ...]
    lacks: bool  # an expansion


@cache
def grown(policy: TreePolicy, recording: Recording) -> list[Grown]:
    """Return the trees at all positions, each grown alone."""
    found = []
    for row in np.flatnonzero(recording.rows.left):
        scorer = RecordedScorer(recording, np.array([row]))
        draft = grow(policy, scorer, 1)
        accepted = int(np.maximum(draft.tokens, 0).sum())
        found.append(Grown(accepted, int(draft.sizes[0]), draft.widths, bool(scorer.censored[0])))
    return found


def swept(results: PositionResults, recording: Recording) -> list[Grown]:
    rows = np.flatnonzero(recording.rows.left)
    widths = np.broadcast_to(results.widths, (len(results.sizes), results.widths.shape[1]))[rows]
    return [
        Grown(accepted, size, tuple(width for width in row if width), lacks)
        for accepted, size, row, lacks in zip(
            results.accepted[rows].tolist(),
            results.sizes[rows].tolist(),
            widths.tolist(),
            results.censored[rows].tolist(),
            strict=True,
        )
    ]


Swept = Iterator[tuple[TreePolicy, PositionResults]]


def beams(recording: Recording) -> Swept:
    for top_k in (1, 2, 3, 4):
        yield from eagle2_results(recording, top_k, [4, 0, 2], [2, 60, 3, 5, 9])


def talons(recording: Recording) -> Swept:
    for gate, top_k, children in ((0.03, 3, 4), (0.3, 2, 3), (1.0, 1, 4), (1e-6, 4, 4)):
        yield from talon_results(recording, gate, top_k, children, [2, 3, 5, 9, 30], [5, 1, 3])


def opt_trees(recording: Recording) -> Swept:
    policies = [
        OptTreePolicy(nodes=nodes, least_gain=gain, max_depth=depth, children=children)
        for nodes, children in ((1, 4), (5, 3), (12, 4), (60, 2))
        for gain in (0.0, 0.1, 0.5)
        for depth in (1, 3, 5)
    ]
    return opt_tree_results(recording, policies)


def doubtful_chains(recording: Recording) -> Swept:
    return confident_chain_results(recording, [1, 3, 5], [0.0, 0.2, 0.37, 0.6])


POLICIES: list[TreePolicy] = [
    ChainPolicy(length=3),
    ConfidentChainPolicy(length=4, confidence=0.3),
    StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 2, 0, 1, 0))),
    Eagle2Policy(verify_tokens=9, depth=3, top_k=3),
    TalonPolicy(nodes=12, gate=0.1, top_k=3, children=4, max_depth=4),
    OptTreePolicy(nodes=8, least_gain=0.1, max_depth=4, children=4),
]
SWEEPS = pytest.mark.parametrize("sweep", [beams, talons, opt_trees, doubtful_chains])


@pytest.mark.thinned
@SWEEPS
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sweep_of_a_whole_recording_equals_every_tree_grown_alone(sweep, seed: int) -> None:
    for policy, results in sweep(whole(seed)):
        assert swept(results, whole(seed)) == grown(policy, whole(seed)), policy.label


@SWEEPS
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_sweep_is_sure_of_in_a_truncated_recording_is_what_the_whole_one_says(sweep, seed: int) -> None:
    for policy, results in sweep(truncated(seed)):
        for found, true in zip(swept(results, truncated(seed)), grown(policy, whole(seed)), strict=True):
            assert found.lacks or found == true, policy.label


@pytest.mark.thinned
@SWEEPS
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sweep_is_sure_wherever_the_growth_found_all_it_asked_for(sweep, seed: int) -> None:
    for policy, results in sweep(truncated(seed)):
        for found, slow in zip(swept(results, truncated(seed)), grown(policy, truncated(seed)), strict=True):
            assert slow.lacks or found == slow, policy.label


@SWEEPS
def test_a_sweep_is_sure_at_some_positions_where_the_growth_lacked_something(sweep) -> None:
    lacking = sure = 0
    for recorded in map(truncated, SEEDS):
        for policy, results in sweep(recorded):
            for found, slow in zip(swept(results, recorded), grown(policy, recorded), strict=True):
                lacking += slow.lacks
                sure += slow.lacks and not found.lacks
    assert 0 < sure < lacking


@SWEEPS
def test_a_sweep_of_scores_out_of_order_is_grown_slowly(sweep) -> None:
    odd = replace(whole(0), is_ordered=False)
    for (policy, slow), (_, fast) in zip(sweep(odd), sweep(whole(0)), strict=True):
        assert swept(slow, odd) == swept(fast, odd), policy.label


@pytest.mark.parametrize("sweep", [beams, talons, opt_trees, doubtful_chains])
def test_a_sweep_of_a_trace_that_is_not_prefix_exact_equals_every_tree_grown_alone(sweep) -> None:
    inexact = whole(1, prefix_exact=False)
    for policy, results in sweep(inexact):
        assert swept(results, inexact) == grown(policy, inexact), policy.label


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_any_stateless_policy_has_results(policy: TreePolicy) -> None:
    for recorded in (whole(2), whole(3)):
        assert swept(results_of(policy, recorded), recorded) == grown(policy, recorded)


@pytest.mark.thinned
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
@pytest.mark.parametrize("batch", range(1, 6))
def test_a_compiled_walk_replays_what_is_grown_round_by_round(policy: TreePolicy, batch: int) -> None:
    fast = replay_results(results_of(policy, whole(3)), whole(3).rows, batch)
    slow = replay_grown(policy, whole(3), batch)
    for name in ("contexts", "nodes", "catch_up", "texts", "kept"):
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist(), name
    assert [[w for w in row if w] for row in fast.widths.tolist()] == [
        [w for w in row if w] for row in slow.widths.tolist()
    ]
    assert fast.censored == slow.censored == 0


def test_equal_scores_abound_in_the_coarse_recordings() -> None:
    scores = np.sort(whole(1).scores[whole(1).bounds[0] : whole(1).bounds[1]].ravel())
    assert (np.diff(scores) == 0.0).mean() > 0.5


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=25), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from(get_args(Occurrence)),
)
def test_every_lookup_finds_what_the_search_of_one_text_finds(
    bodies: list[list[int]], length: int, min_ngram: int, more: int, occurrence: Occurrence
) -> None:
    pairs = [Text(prompt=tuple(body[:1]), continuation=tuple(body[1:])) for body in bodies]
    ((_, found),) = lookup_results(pairs, min_ngram + more, min_ngram, [length], occurrence)
    drafts = [
        (body[now:], find_continuation(body[:now], length, min_ngram + more, min_ngram, occurrence))
        for body in bodies
        for now in range(2, len(body) + 1)
    ]
    assert (found.sizes - 1).tolist() == [len(draft) if truth else 0 for truth, draft in drafts]
    assert found.accepted.tolist() == [
        len(list(takewhile(bool, map(eq, draft, truth)))) if truth else 0 for truth, draft in drafts
    ]


def test_importing_the_kernels_loads_no_compiler(tmp_path: Path) -> None:
    code = "import sys, spectune.planner.lockstep, spectune.planner.strategies; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0
