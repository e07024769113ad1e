"""Hybrids of the text and a model: where the text has a match it drafts, else the model does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from spectune.planner.lockstep import replay_results
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.crossfit import EVERYWHERE, HALVES, texts_of_half
from spectune.planner.records.recording import Recording, recording_of
from spectune.planner.records.tree import TokenTree
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import ELSE_LENGTHS, price, price_all
from spectune.planner.strategies import TreePolicy, policy_from_json, policy_to_json
from spectune.planner.strategies.base import Bounds, results_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy, hybrid_results, hybrids
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy

from ...support.slow_decoder import Pair
from ...support.synthetic import Language, SkilledDrafter, every_node, inputs, record
from ...support.text_oracles import Tree, longest_match, slow_suffix, slow_suffix_tree

CELL = Cell(batch=1, context=50)
CHAIN = ChainPolicy(length=3)
HYBRIDS = [
    HybridPolicy(text=SuffixPolicy(length=6, min_match=3, occurrence="last"), model=CHAIN),
    HybridPolicy(text=SuffixPolicy(), model=StaticPolicy(tree=TokenTree(parents=(-1, 0, 0), ranks=(0, 0, 1)))),
    HybridPolicy(text=SuffixPolicy(length=9, min_match=2), model=Eagle2Policy(verify_tokens=5, depth=1, top_k=2)),
    HybridPolicy(text=SuffixTreePolicy(nodes=7, factor=4, min_match=2, least_score=1.5), model=CHAIN),
]


@cache
def recorded() -> tuple[list[Pair], Recording]:
    """Texts that repeat phrases with fresh words between them, and a drafter that knows these now and then."""
    source, language = random.Random(1), Language(3)
    phrases = [tuple(source.randrange(8) for _ in range(9)) for _ in range(2)]
    pairs = []
    for _ in range(6):
        said: list[int] = []
        while len(said) < 70:
            said += [*source.choice(phrases), *(source.randrange(8) for _ in range(6))]
        pairs.append((tuple(said[:20]), tuple(said[20:60])))
    return pairs, recording_of(record(SkilledDrafter(language, 0.8), pairs, every_node(3, 3)))


def decoded(policy: HybridPolicy, pairs: list[Pair], recording: Recording) -> list[tuple[int, int, int]]:
    """Decode text by text at batch 1: tokens kept, tokens verified and tokens the model reads first, 0 where none."""
    rounds, row = [], 0
    own = results_of(CHAIN, recording)
    for prompt, continuation in pairs:
        text, now, unread = prompt + continuation, len(prompt) + 1, 1
        while now < len(text):
            at = row + now - len(prompt) - 1
            draft = slow_copies(text[:now], policy.text)
            right = max((len(path) for path in draft if text[now : now + len(path)] == path), default=0)
            accepted, size = (right, 1 + len(draft)) if draft else (int(own.accepted[at]), int(own.sizes[at]))
            kept = min(accepted + 1, len(text) - now)
            rounds.append((kept, size, 0 if draft else unread))
            unread = unread + kept if draft else kept
            now += kept
        row += len(continuation)
    return rounds


def slow_copies(text: Sequence[int], policy: SuffixPolicy | SuffixTreePolicy) -> Tree:
    """Return what the policy copies, every node by its path."""
    if isinstance(policy, SuffixTreePolicy):
        return slow_suffix_tree(text, policy)
    copied = tuple(slow_suffix(text, policy))
    return [copied[: length + 1] for length in range(len(copied))]


@pytest.mark.parametrize("policy", [HYBRIDS[0], HYBRIDS[3]], ids=lambda policy: policy.code)
def test_rounds_are_those_of_decoding_text_by_text(policy: HybridPolicy) -> None:
    pairs, recording = recorded()
    texts = policy.text.results_in(recording.texts)
    replay = replay_results(hybrid_results(texts, results_of(CHAIN, recording)), recording.rows, 1)
    ran = replay.widths[:, 0] > 0
    found = zip(replay.kept[:, 0].tolist(), replay.nodes.tolist(), (replay.catch_up * ran).tolist(), strict=True)
    rounds = decoded(policy, pairs, recording)
    assert list(found) == rounds
    assert max(unread for _, _, unread in rounds) > 1 + CHAIN.length  # it caught up with several rounds at once
    assert 0 < sum(unread > 0 for _, _, unread in rounds) < len(rounds)


def test_the_text_drafts_where_the_match_is_long_enough_and_only_there() -> None:
    pairs, recording = recorded()
    results = hybrid_results(HYBRIDS[0].text.results_in(recording.texts), results_of(CHAIN, recording))
    prompt, continuation = pairs[0]
    for now in range(1, len(continuation)):
        has_match = longest_match(prompt + continuation[:now]) >= 3
        assert results.widths[now - 1].tolist() == ([0, 0, 0] if has_match else [1, 1, 1])


@pytest.mark.parametrize("policy", HYBRIDS, ids=lambda policy: policy.code)
def test_a_hybrid_comes_back_from_json_bit_for_bit(policy: TreePolicy) -> None:
    assert policy_from_json(policy_to_json(policy)) == policy


def test_a_hybrid_is_as_deep_and_large_as_the_larger_of_both() -> None:
    assert HYBRIDS[0].bounds == Bounds(depth=6, width=1, tokens=7)
    assert HYBRIDS[2].bounds == Bounds(depth=9, width=2, tokens=10)


def test_a_drafter_that_runs_in_few_rounds_is_charged_for_these_alone() -> None:
    pairs, recording = recorded()
    found = inputs(record(SkilledDrafter(Language(3), 0.8), pairs, every_node(3, 3)))
    priced = price(found, CELL, HYBRIDS[0], "small")
    rounds = decoded(HYBRIDS[0], pairs, recording)
    forwards = sum(3 for _, _, unread in rounds if unread)
    assert priced.draft_ms * len(rounds) == pytest.approx(forwards * 1.0)
    assert priced.verify_ms * len(rounds) == pytest.approx(sum(10.0 + 0.1 * nodes for _, nodes, _ in rounds))


def test_hybrids_compete_beside_what_they_are_made_of() -> None:
    pairs, _ = recorded()
    found = inputs(record(SkilledDrafter(Language(3), 0.8), pairs, every_node(3, 3)))
    (contest,) = price_all(Rehearsal(found), [CELL], SearchOptions())
    assert contest.best_of("hybrid", "small") > max(
        contest.best_of("chain", "small"), contest.best_of("static", "small")
    )


def test_a_hybrid_s_model_drafts_what_is_fastest_on_the_half_that_the_hybrid_saw() -> None:
    pairs, _ = recorded()
    found = inputs(record(SkilledDrafter(Language(3), 0.8), pairs, every_node(3, 3)))
    (contest,) = price_all(Rehearsal(found), [CELL], SearchOptions())
    priced = list(zip(contest.priced, contest.searched_on, strict=True))
    assert {half for one, half in priced if isinstance(one.policy, HybridPolicy)} > {EVERYWHERE}
    models = {one.policy.model for one in contest.priced if isinstance(one.policy, HybridPolicy)}
    assert models >= {ChainPolicy(length=length) for length in ELSE_LENGTHS}
    made = [(one.policy, saw) for one, saw in priced if isinstance(one.policy, HybridPolicy)]
    for policy, half in ((policy, half) for policy, saw in made for half in range(HALVES) if saw in (EVERYWHERE, half)):
        if policy.model in [ChainPolicy(length=length) for length in ELSE_LENGTHS]:
            continue  # which are there whatever is the fastest
        texts = texts_of_half(len(pairs), half)
        rivals: dict[TreePolicy, float] = {
            own.policy: own.tokens_per_s_on(texts)
            for own, seen in priced
            if own.policy.kind == policy.model.kind and own.drafter == "small" and seen in (EVERYWHERE, half)
        }
        assert rivals[policy.model] == max(rivals.values())


def test_every_tree_of_the_grid_may_be_copied() -> None:
    _, recording = recorded()
    texts = {policy.text for policy, _ in hybrids(recording, [CHAIN], 33)}
    trees = [text for text in texts if isinstance(text, SuffixTreePolicy)]
    assert len(trees) > 9 and all(tree.least_score < tree.nodes - 1 for tree in trees)
    assert any(isinstance(text, SuffixPolicy) for text in texts)


def test_every_hybrid_of_the_grid_has_the_results_it_has_alone() -> None:
    _, recording = recorded()
    for policy, results in list(hybrids(recording, [CHAIN], 33))[::5]:
        alone = hybrid_results(policy.text.results_in(recording.texts), results_of(CHAIN, recording))
        assert np.array_equal(results.accepted, alone.accepted) and np.array_equal(results.sizes, alone.sizes)
