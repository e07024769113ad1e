"""Replay against decoding token by token: the same rounds, the same tokens, for every kind of policy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.lockstep import Replay, replay_results
from spectune.planner.records.recording import RecordedScorer, Recording, recording_of
from spectune.planner.records.results import PositionResults
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow, results_of
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy, eagle2_results
from spectune.planner.strategies.grown import replay_grown
from spectune.planner.strategies.lookup import LookupPolicy, lookup_results
from spectune.planner.strategies.plain import PlainPolicy, plain_results
from spectune.planner.strategies.static import StaticPolicy
from spectune.profiler.records.acceptance import MISS

from ...support.slow_decoder import Draw, Drawn, Log, Pair, Path, decode, drawing
from ...support.synthetic import Language, SkilledDrafter, every_node, record, texts
from ...support.toy_drafter import ToyScorer

TREE = TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 2, 0, 1, 0))
INDEPENDENT = [
    PlainPolicy(),
    ChainPolicy(length=1),
    ChainPolicy(length=4),
    LookupPolicy(length=3, max_ngram=2),
    LookupPolicy(length=5, max_ngram=3, min_ngram=2),
    StaticPolicy(tree=TREE),
    Eagle2Policy(verify_tokens=6, depth=2, top_k=2),
    Eagle2Policy(verify_tokens=4, depth=0, top_k=3),
    Eagle2Policy(verify_tokens=60, depth=3, top_k=3),
]
CAST = CastPolicy(
    breadth=0.4,
    depth=0.3,
    rerank=0.4,
    max_width=3,
    max_depth=4,
    max_verify_tokens=12,
    ratio_window=3,
    draft_cost_ms=(0.0, 1.0, 1.1, 1.3),
    verify_cost_ms=(0.0, *(10.0 + 0.7 * tokens for tokens in range(12))),
)


def length_of(text: int) -> int:
    return 9 + 5 * (text % 3)


@cache
def recorded(seed: int) -> tuple[SkilledDrafter, list[Pair], Recording]:
    language = Language(seed)
    drafter, pairs = SkilledDrafter(language, skill=0.7), texts(language, 7, length_of)
    return drafter, pairs, recording_of(record(drafter, pairs, every_node(3, 3)))


class LiveScorer(ToyScorer):
    """Asks a skilled drafter behind the committed texts."""

    def __init__(self, drafter: SkilledDrafter, committed: list[Path]):
        super().__init__([drafter] * len(committed))  # type: ignore[list-item]  # only `best` is asked for
        self.paths = [[tokens] for tokens in committed]


def cast_drawing(policy: CastPolicy, drafter: SkilledDrafter) -> Draw:
    def draw(committed: list[Path]) -> list[Drawn]:
        draft = grow(policy, LiveScorer(drafter, committed), len(committed))
        return [Drawn(paths(draft, row), list(draft.widths)) for row in range(len(committed))]

    return draw


def paths(draft, row: int) -> set[Path]:
    path: dict[int, Path] = {0: ()}
    for node in range(1, int(draft.sizes[row])):
        path[node] = (*path[int(draft.parents[row, node])], int(draft.tokens[row, node]))
    return set(path.values()) - {()}


def results(policy: TreePolicy, recording: Recording) -> PositionResults:
    match policy:
        case PlainPolicy():
            return plain_results(recording.rows)
        case LookupPolicy():
            return next(lookup_results(recording.texts, policy.max_ngram, policy.min_ngram, [policy.length]))[1]
        case Eagle2Policy():
            return next(eagle2_results(recording, policy.top_k, [policy.depth], [policy.verify_tokens]))[1]
        case ChainPolicy() | StaticPolicy():
            return results_of(policy, recording)
    raise AssertionError(policy)


def assert_same_rounds(replay: Replay, log: Log) -> None:
    assert replay.kept.tolist() == log.kept
    assert replay.texts.tolist() == log.texts
    assert replay.nodes.tolist() == log.nodes
    assert replay.contexts.tolist() == log.contexts
    assert replay.catch_up.tolist() == log.catch_up
    assert [[width for width in row if width] for row in replay.widths.tolist()] == log.widths


@pytest.mark.thinned
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("policy", INDEPENDENT, ids=lambda policy: policy.code)
def test_replay_equals_decoding_token_by_token(policy: TreePolicy, seed: int, batch: int) -> None:
    drafter, pairs, recording = recorded(seed)
    replay = replay_results(results(policy, recording), recording.rows, batch)
    assert_same_rounds(replay, decode(drawing(policy, drafter), pairs, batch))
    assert replay.censored == 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cast_replays_as_it_decodes(seed: int, batch: int) -> None:
    drafter, pairs, recording = recorded(seed)
    assert_same_rounds(replay_grown(CAST, recording, batch), decode(cast_drawing(CAST, drafter), pairs, batch))


@pytest.mark.parametrize("policy", [ChainPolicy(length=3), StaticPolicy(tree=TREE)], ids=lambda policy: policy.kind)
def test_a_trace_that_is_not_prefix_exact_replays_on_its_expansions(policy: ChainPolicy | StaticPolicy) -> None:
    language = Language(4)
    drafter, pairs = SkilledDrafter(language, skill=0.6), texts(language, 4, length_of)
    recording = recording_of(record(drafter, pairs, every_node(3, 3), prefix_exact=False))
    replay = replay_results(results_of(policy, recording), recording.rows, 1)
    assert_same_rounds(replay, decode(drawing(policy, drafter), pairs, 1))


@pytest.mark.parametrize("top_k", [2, 3])
def test_every_size_and_depth_of_a_beam_equals_the_tree_grown_alone(top_k: int) -> None:
    language = Language(5)
    recording = recording_of(record(SkilledDrafter(language, 0.5), texts(language, 3, length_of), every_node(3, 3)))
    rows = np.flatnonzero(recording.rows.left)
    for policy, found in eagle2_results(recording, top_k, [0, 1, 3], [2, 5, 9, 40]):
        draft = grow(policy, RecordedScorer(recording, rows), len(rows))
        assert found.accepted[rows].tolist() == draft.tokens[:, 1:].sum(axis=1).tolist()
        assert found.sizes[rows].tolist() == draft.sizes.tolist()
        assert tuple(found.widths[0].tolist()) == draft.widths


def test_a_drafter_that_is_always_right_keeps_every_draft_and_one_more() -> None:
    language = Language(1)
    recording = recording_of(record(SkilledDrafter(language, 1.0), texts(language, 2, lambda i: 21), every_node(0, 3)))
    replay = replay_results(results_of(ChainPolicy(length=3), recording), recording.rows, 1)
    assert set(replay.kept.ravel().tolist()) == {4}


def test_a_drafter_that_is_never_right_keeps_one() -> None:
    language = Language(1)
    recording = recording_of(record(SkilledDrafter(language, 0.0), texts(language, 2, lambda i: 21), every_node(0, 3)))
    replay = replay_results(results_of(ChainPolicy(length=3), recording), recording.rows, 2)
    assert set(replay.kept.ravel().tolist()) == {1}


def test_tokens_add_up_to_the_whole_of_every_text_for_one_slot() -> None:
    language = Language(2)
    recording = recording_of(record(SkilledDrafter(language, 0.6), texts(language, 5, length_of), every_node(0, 3)))
    replay = replay_results(results_of(ChainPolicy(length=2), recording), recording.rows, 1)
    by_text = np.bincount(replay.texts.ravel(), weights=replay.kept.ravel(), minlength=5)
    assert by_text.tolist() == [length_of(text) - 1 for text in range(5)]


def test_a_position_is_censored_where_a_node_that_was_not_recorded_could_change_what_is_accepted() -> None:
    language = Language(3)
    recording = recording_of(record(SkilledDrafter(language, 0.6), texts(language, 3, length_of), every_node(1, 2)))
    (_, whole), (_, small) = eagle2_results(recording, 3, [2], [40, 2])  # child 2 of the root was not recorded
    right = recording.next_rank[recording.rows.left > 0]
    assert set(right.tolist()) == {0, 1, 2, MISS}
    assert whole.censored[recording.rows.left > 0][right == 2].all()  # it is the target's own, so more may be
    assert not whole.censored[recording.rows.left > 0][right == MISS].any()  # nothing below the root can be accepted
    assert not small.censored.any()  # only the root's best child is in the tree, and it is recorded


def test_what_was_not_recorded_is_never_accepted() -> None:
    language = Language(3)
    recording = recording_of(record(SkilledDrafter(language, 1.0), texts(language, 3, length_of), every_node(0, 3)))
    _, found = next(eagle2_results(recording, 3, [3], [40]))
    assert found.accepted.max() == 1


def test_cast_counts_rows_with_unrecorded_nodes() -> None:
    language = Language(3)
    recording = recording_of(record(SkilledDrafter(language, 0.6), texts(language, 3, length_of), every_node(0, 3)))
    replay = replay_grown(CAST, recording, 1)
    assert replay.censored_share == np.mean([sum(width > 0 for width in row) > 1 for row in replay.widths.tolist()])
    assert replay.censored_share > 0


def test_more_children_than_recorded_are_refused() -> None:
    language = Language(3)
    recording = recording_of(record(SkilledDrafter(language, 0.6), texts(language, 2, length_of), every_node(0, 3)))
    with pytest.raises(PlanError, match="records 3 children per node and the policy takes 4"):
        RecordedScorer(recording, np.array([0])).root(4)


def test_fewer_texts_than_slots_are_refused() -> None:
    language = Language(3)
    recording = recording_of(record(SkilledDrafter(language, 0.6), texts(language, 2, length_of), every_node(0, 3)))
    with pytest.raises(PlanError, match="a batch of 3 needs as many texts, the trace holds 2"):
        replay_results(plain_results(recording.rows), recording.rows, 3)
