"""Policies that draft from the text: what a replay finds at every position is what is drafted there."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.errors import PlanError, SpectuneError
from spectune.planner.inputs import LOOKUP, PlanInputs
from spectune.planner.lockstep import replay_results
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import cells_of
from spectune.planner.records.recording import Recorded, Text, rows_of
from spectune.planner.replay.rehearsal import shape_of
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import textual
from spectune.planner.search.search import solve
from spectune.planner.strategies import policy_from_json, policy_to_json
from spectune.planner.strategies.cacheback import CachebackPolicy, calibrated
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.offers import Limits
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.text import TextPolicy
from spectune.planner.strategies.texts import TextState

from ...support.synthetic import DEVICE, TARGET, overhead, surface

RNG = np.random.default_rng(5)
TEXTS = tuple(
    Text(prompt=tuple(RNG.integers(0, 5, 4 + i).tolist()), continuation=tuple(RNG.integers(0, 3, 20 + i).tolist()))
    for i in range(5)
)
RECORDED = Recorded(texts=TEXTS, rows=rows_of(TEXTS))
TABLE = CachebackPolicy(leader_tokens=2, follower_tokens=2, leaders=6, followers=3, nodes=9)
POLICIES: list[TextPolicy] = [
    LookupPolicy(length=4),
    LookupPolicy(length=4, max_ngram=2, occurrence="first"),
    SuffixPolicy(),
    SuffixPolicy(length=5, factor=1, min_match=2, occurrence="last"),
    SuffixTreePolicy(),
    SuffixTreePolicy(nodes=8, factor=2, offset=1, least_chance=0.0),
    SuffixTreePolicy(nodes=9, factor=4, offset=1, least_chance=0.05, min_match=2),
    SuffixTreePolicy(nodes=12, factor=4, offset=1, least_score=1.7),
    CachebackPolicy(),
    TABLE,
    calibrated(TABLE, TEXTS, np.ones(5, dtype=np.bool_)),
]
by_label = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.code)


@by_label
def test_every_position_has_the_tree_that_is_drafted_there(policy: TextPolicy) -> None:
    results, row = policy.results_in(TEXTS), 0
    for text in TEXTS:
        tokens, state = text.prompt + text.continuation, TextState()
        for now in range(len(text.prompt) + 1, len(tokens)):
            drafted, parents, depths = state.draft(tokens[:now], policy)
            reached = {0}
            for node in range(1, len(drafted)):
                ahead = tokens[now + depths[node] - 1 : now + depths[node]]
                reached |= {node} if parents[node] in reached and ahead == (drafted[node],) else set()
            assert (len(drafted), len(reached) - 1) == (results.sizes[row], results.accepted[row])
            row += 1
        row += 1  # the text's end


def test_every_policy_of_the_grid_has_the_results_it_has_alone() -> None:
    found = [one for one in textual(RECORDED, Limits(most_tokens=33)) if one.policy.source == "text"]
    assert len({policy for policy, _, _ in found}) > 500
    for policy, results, _ in found[::17]:
        alone = policy.results(RECORDED)
        assert results.accepted.tolist() == alone.accepted.tolist()
        assert results.sizes.tolist() == alone.sizes.tolist()


@by_label
def test_no_tree_is_larger_or_deeper_than_the_policy_says(policy: TextPolicy) -> None:
    extent = policy.bounds
    for text in TEXTS:
        tree = TextState().draft(text.prompt + text.continuation, policy)
        assert tree.shape[1] <= extent.tokens == policy.max_verify_tokens and tree[2].max() <= extent.depth


@by_label
def test_accepted_nodes_by_depth_are_the_rounds_tokens(policy: TextPolicy) -> None:
    shape = shape_of(policy, 1, texts=TEXTS)
    replay = replay_results(policy.results_in(TEXTS), rows_of(TEXTS), 1)
    last_rounds = len(TEXTS) / replay.rounds  # those may accept all that is left, and then emit no token more
    assert sum(shape.reached) == pytest.approx(replay.tokens_per_round - 1, abs=last_rounds)


@by_label
def test_a_policy_comes_back_from_json_bit_for_bit(policy: TextPolicy) -> None:
    assert policy_from_json(policy_to_json(policy)) == policy


def test_labels_of_the_grid_are_all_different_but_for_calibration() -> None:
    found = [policy for policy, _, half in textual(RECORDED, Limits(most_tokens=33)) if half < 1]
    assert len({policy.code for policy in found}) == len(found)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SuffixPolicy(length=0),
        lambda: SuffixPolicy(factor=0, offset=0),
        lambda: SuffixPolicy(min_match=0),
        lambda: SuffixTreePolicy(nodes=1),
        lambda: SuffixTreePolicy(least_chance=1.5),
        lambda: SuffixTreePolicy(min_match=0),
        lambda: SuffixTreePolicy(least_score=-0.5),
        lambda: SuffixTreePolicy(least_score=float("nan")),
        lambda: CachebackPolicy(leaders=0),
        lambda: CachebackPolicy(chances=(0.5,)),
        lambda: CachebackPolicy(followers=1, follower_tokens=1, chances=(0.5, -0.1, 0.2)),
    ],
)
def test_a_policy_out_of_range_is_refused(make) -> None:
    with pytest.raises(PlanError):
        make()


def test_an_occurrence_that_is_neither_first_nor_last_is_refused() -> None:
    with pytest.raises(SpectuneError):
        policy_from_json(policy_to_json(SuffixPolicy()).replace('"first"', '"any"'))


def planned(texts: tuple[Text, ...]) -> Plan:
    """Return the plan of a target without drafters whose forwards cost a little more the wider they are."""
    inputs = PlanInputs(
        device=DEVICE,
        target=TARGET,
        dtype="float32",
        verify=surface("large", "verify", lambda batch, context, tokens: 10.0 + 0.2 * tokens),
        overhead=overhead(0.1),
        texts=texts,
        workload="made up",
    )
    return solve(inputs, cells_of([1], [64]), created="now", spectune="test", options=SearchOptions(trials=0))


def test_a_plan_drafts_from_the_text_where_it_repeats_itself() -> None:
    words = RNG.integers(0, 400, (6, 12)).tolist()
    said = [tuple(token for _ in range(8) for token in words[RNG.integers(6)]) for _ in range(8)]
    (cell,) = planned(tuple(Text(prompt=one[:30], continuation=one[30:]) for one in said)).cells
    assert cell.drafter == LOOKUP and cell.prediction.speedup_over_plain > 1.5
    kinds = {other.policy.kind for other in cell.alternatives} | {cell.policy.kind}
    assert kinds & {"suffix", "suffix-tree", "cacheback"}


def test_a_plan_decodes_plainly_where_nothing_repeats() -> None:
    said = [tuple(range(100 * i, 100 * i + 90)) for i in range(8)]
    (cell,) = planned(tuple(Text(prompt=one[:30], continuation=one[30:]) for one in said)).cells
    assert isinstance(cell.policy, PlainPolicy)
