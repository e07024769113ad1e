"""What the trees of a policy look like along the recorded texts, counted anew one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.records.recording import RecordedScorer, recording_of, texts_of
from spectune.planner.records.tree import ShapeFacts, TokenTree
from spectune.planner.replay.rehearsal import shape_of
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import Bounds, grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.talon import TalonPolicy

from ..support.synthetic import Language, SkilledDrafter, every_node, record, texts

LANGUAGE = Language(4)
DRAFTER = SkilledDrafter(LANGUAGE, 0.7)
PAIRS = texts(LANGUAGE, 5, lambda text: 14 + text)
TRACE = record(DRAFTER, PAIRS, every_node(3, 3))
RECORDING = recording_of(TRACE)
TEXTS = texts_of(TRACE)
TREE = TokenTree(parents=(-1, 0, 0, 1, 1, 2, 3), ranks=(0, 0, 1, 0, 2, 0, 0))
CAST = CastPolicy(
    breadth=0.4,
    depth=0.4,
    rerank=0.2,
    max_width=3,
    max_depth=3,
    max_verify_tokens=8,
    ratio_window=2,
    draft_cost_ms=(0.0, 1.0, 1.1, 1.2),
    verify_cost_ms=(0.0, *(8.0 + 0.2 * tokens for tokens in range(1, 9))),
)
DYNAMIC: list[TreePolicy] = [
    Eagle2Policy(verify_tokens=8, depth=2, top_k=3),
    TalonPolicy(nodes=9, gate=0.2, top_k=3, children=3, max_depth=3),
    OptTreePolicy(nodes=7, least_gain=0.1, max_depth=3, children=3),
    ConfidentChainPolicy(length=3, confidence=0.5),
    CAST,
]


def shape(policy: TreePolicy, batch: int = 1) -> ShapeFacts:
    return shape_of(policy, batch, texts=TEXTS, recording=RECORDING)


def drafted_tokens(context: tuple[int, ...], tree: TokenTree) -> list[tuple[int, ...]]:
    """Return each node's path of tokens, asked of the drafter itself."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, tree.size):
        above = paths[tree.parents[node]]
        paths.append((*above, DRAFTER.best(context + above, tree.ranks[node] + 1)[tree.ranks[node]][0]))
    return paths


def test_a_fixed_tree_is_taken_where_its_paths_are_the_text() -> None:
    counts, rounds = np.zeros(TREE.size), 0
    for prompt, text in PAIRS:
        now = 1
        while now < len(text):
            paths = drafted_tokens(prompt + text[:now], TREE)
            taken = [text[now : now + len(path)] == path for path in paths]
            counts += taken
            rounds += 1
            now += sum(taken)
    found = shape(StaticPolicy(tree=TREE))
    assert found.taken == pytest.approx((counts / rounds).tolist())
    assert found.verified == (2.0, 3.0, 1.0)
    assert found.reached == pytest.approx(
        [counts[[1, 2]].sum() / rounds, counts[3:6].sum() / rounds, counts[6] / rounds]
    )


@pytest.mark.parametrize("policy", [ChainPolicy(length=3), StaticPolicy(tree=TREE)])
def test_a_fixed_tree_grown_node_by_node_is_the_same(policy: TreePolicy) -> None:
    grown = shape_of(policy, 1, texts=TEXTS, recording=replace(RECORDING, is_prefix_exact=False))
    direct = shape(policy)
    assert grown.verified == direct.verified
    assert grown.reached == pytest.approx(direct.reached)
    assert grown.taken == pytest.approx(direct.taken)


@pytest.mark.parametrize("policy", DYNAMIC, ids=lambda policy: policy.kind)
def test_a_growing_tree_is_counted_at_every_position_its_rounds_visit(policy: TreePolicy) -> None:
    verified, taken, rounds = np.zeros(4), np.zeros(4), 0
    for start, end in zip(RECORDING.rows.starts.tolist(), RECORDING.rows.ends.tolist(), strict=True):
        row = start
        while row < end:
            draft = grow(policy, RecordedScorer(RECORDING, np.array([row])), 1)
            for token, depth in zip(draft.tokens[0, 1:].tolist(), draft.depths[0, 1:].tolist(), strict=True):
                verified[depth] += token >= 0
                taken[depth] += token == 1
            rounds += 1
            row = min(row + int((draft.tokens == 1).sum()) + 1, end)
    found = shape(policy)
    depths = len(found.verified)
    assert found.verified == pytest.approx((verified[1 : depths + 1] / rounds).tolist())
    assert found.reached == pytest.approx((taken[1 : depths + 1] / rounds).tolist())
    assert not verified[depths + 1 :].any() and found.taken == ()


def test_sequences_that_influence_each_other_run_in_pairs_until_one_of_them_ends() -> None:
    verified, trees = 0, 0
    for first in (0, 2):  # the fifth text has no partner
        running = RECORDING.rows.starts[first : first + 2].tolist()
        while not any(row in RECORDING.rows.ends for row in running):
            draft = grow(CAST, RecordedScorer(RECORDING, np.array(running)), 2)
            verified += int((draft.sizes - 1).sum())
            trees += 2
            steps = (draft.tokens == 1).sum(axis=1) + 1
            left = RECORDING.rows.left[running]
            running = [row + min(step, most) for row, step, most in zip(running, steps, left, strict=True)]
    assert sum(shape(CAST, 2).verified) == pytest.approx(verified / trees)


def test_a_lookup_is_counted_where_it_found_something() -> None:
    found = shape_of(LookupPolicy(length=3, max_ngram=2), 4, texts=TEXTS)
    assert len(found.verified) == 3
    assert all(taken <= looked for taken, looked in zip(found.reached, found.verified, strict=True))
    assert list(found.verified) == sorted(found.verified, reverse=True)


def test_plain_decoding_has_no_tree() -> None:
    assert shape_of(PlainPolicy(), 2, texts=TEXTS) == ShapeFacts(verified=(), reached=())


def test_a_drafted_policy_needs_its_recording() -> None:
    with pytest.raises(PlanError, match="pass the recording of its drafter"):
        shape_of(ChainPolicy(length=2), 1, texts=TEXTS)


@pytest.mark.parametrize(
    ("policy", "depth", "width", "tokens"),
    [
        (PlainPolicy(), 0, 0, 1),
        (LookupPolicy(length=4), 4, 1, 5),
        (ChainPolicy(length=3), 3, 1, 4),
        (ConfidentChainPolicy(length=3), 3, 1, 4),
        (StaticPolicy(tree=TREE), 3, 2, 7),
        (Eagle2Policy(verify_tokens=60, depth=7, top_k=10), 8, 10, 60),
        (Eagle2Policy(verify_tokens=4, depth=0, top_k=10), 1, 1, 4),
        (Eagle2Policy(verify_tokens=6, depth=7, top_k=2), 5, 2, 6),
        (TalonPolicy(nodes=60, top_k=10, max_depth=5), 5, 49, 60),
        (OptTreePolicy(nodes=30, max_depth=6), 6, 30, 31),
        (OptTreePolicy(nodes=3, max_depth=6), 3, 3, 4),
        (CAST, 3, 3, 8),
        (replace(CAST, max_verify_tokens=3), 2, 3, 3),
    ],
)
def test_a_policy_s_trees_are_bounded(policy: TreePolicy, depth: int, width: int, tokens: int) -> None:
    assert policy.bounds == Bounds(depth=depth, width=width, tokens=tokens)


def test_a_chain_and_a_static_tree_are_the_same_in_every_round() -> None:
    chain = ChainPolicy(length=2).fixed_tree
    assert chain == TokenTree(parents=(-1, 0, 1), ranks=(0, 0, 0))
    assert StaticPolicy(tree=TREE).fixed_tree is TREE
    assert Eagle2Policy().fixed_tree is None
