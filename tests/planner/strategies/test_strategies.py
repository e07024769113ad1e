"""Every registered strategy holds to what `planner/strategies/base.py` promises of it, on recorded texts."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.records.draft import DraftBatch
from spectune.planner.records.recording import Recorded, RecordedScorer, recording_of
from spectune.planner.records.results import PositionResults
from spectune.planner.strategies import REGISTRY, TreePolicy, policy_from_json, policy_to_json
from spectune.planner.strategies.base import Strategy, grow
from spectune.planner.strategies.delegating import DelegatingPolicy
from spectune.planner.strategies.grown import grown_results, replay_grown
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.offers import Limits
from spectune.planner.strategies.text import TextPolicy, batch_of
from spectune.planner.strategies.texts import TextState

from ...support.drawn_bounds import DRAWN
from ...support.synthetic import Language, SkilledDrafter, every_node, record, texts

CHILDREN, DEPTH, MOST_DRAWN = 6, 3, 8
KINDS = sorted(REGISTRY)
GROWN = [kind for kind, one in REGISTRY.items() if one.source == "model" and not issubclass(one, DelegatingPolicy)]
TEXTUAL = [kind for kind, one in REGISTRY.items() if issubclass(one, TextPolicy)]


@cache
def recorded() -> Recorded:
    """Return five texts and a drafter along them, of which whatever lies deeper than three nodes is not recorded."""
    language = Language(2)
    pairs = texts(language, 5, lambda text: (6, 11, 3, 8, 2)[text])
    drafter = SkilledDrafter(language, skill=0.6, seed=2)
    return Recorded.by(recording_of(record(drafter, pairs, every_node(DEPTH, CHILDREN), children=CHILDREN)))


@cache
def policies_of(kind: str) -> list[TreePolicy]:
    """Return the kind's probes, and some that were drawn at random."""
    drawn = (policy_from_json(json.dumps(fields)) for fields, _ in DRAWN.get(kind, [])[:MOST_DRAWN])
    found = [*REGISTRY[kind].probes(24), *drawn]
    return [policy for policy in found if policy.children <= CHILDREN]


def true_of(results: PositionResults) -> list[tuple[int, int, tuple[int, ...], bool]]:
    """Return what results say of every position that is not a text's end."""
    rows = np.flatnonzero(recorded().rows.left)
    widths = np.broadcast_to(results.widths, (len(results.sizes), results.widths.shape[1]))[rows]
    return [
        (accepted, size, tuple(width for width in ran if width), lacks)
        for accepted, size, ran, lacks in zip(
            results.accepted[rows].tolist(),
            results.sizes[rows].tolist(),
            widths.tolist(),
            results.censored[rows].tolist(),
            strict=True,
        )
    ]


def test_every_kind_names_one_class_in_one_file() -> None:
    assert len({one.__module__ for one in REGISTRY.values()}) == len(REGISTRY)
    for kind, strategy in REGISTRY.items():
        assert strategy.own_kind() == kind
        assert fields(strategy)[-1].name == "kind", "plans are compared byte for byte: the kind stands last"


@pytest.mark.parametrize("kind", KINDS)
def test_a_strategy_is_read_as_it_was_written(kind: str) -> None:
    for policy in policies_of(kind):
        assert policy_from_json(policy_to_json(policy)) == policy


@pytest.mark.parametrize("kind", KINDS)
def test_people_read_more_than_the_code(kind: str) -> None:
    for policy in policies_of(kind):
        label = name_of(policy.code, "small")
        assert label != f"{policy.code} by small" or kind == "chain"
        assert ("small" in label) == (policy.source in ("model", "both") and "stack" not in policy.code)


@pytest.mark.parametrize("kind", GROWN)
def test_a_sweep_tells_what_growing_at_every_position_tells(kind: str) -> None:
    if REGISTRY[kind].is_of_one_cell:
        pytest.skip("its sequences share their widths: see the replay below")
    policies = policies_of(kind)
    strategy: type[Strategy] = REGISTRY[kind]
    swept = {found.policy: found.results for found in strategy.sweep(recorded(), policies)}
    assert swept.keys() == {*policies}
    for policy, results in swept.items():
        grown = grown_results(policy, recorded().drafted)
        for found, slow in zip(true_of(results), true_of(grown), strict=True):
            assert slow[-1] or found == slow, policy.label  # where growing lacked nothing


@pytest.mark.parametrize("kind", [kind for kind in GROWN if REGISTRY[kind].is_of_one_cell])
def test_a_replay_of_coupled_sequences_is_what_grows_round_by_round(kind: str) -> None:
    for policy in policies_of(kind):
        fast, slow = policy.replay(recorded(), 3), replay_grown(policy, recorded().drafted, 3)
        assert (fast.kept.tolist(), fast.nodes.tolist()) == (slow.kept.tolist(), slow.nodes.tolist()), policy.label
        with pytest.raises(PlanError, match="single positions"):
            policy.results(recorded())


@pytest.mark.parametrize("kind", TEXTUAL)
def test_a_text_s_sweep_tells_what_drafting_at_every_position_tells(kind: str) -> None:
    for policy in policies_of(kind):
        if not isinstance(policy, TextPolicy) or "mapped" in policy.code:
            continue
        results, row = policy.results(recorded()), 0
        for text in recorded().texts:
            tokens = text.prompt + text.continuation
            for now in range(len(text.prompt) + 1, len(tokens)):
                draft = batch_of([TextState().draft(tokens[:now], policy)])
                assert draft.tokens.shape[1] == results.sizes[row], policy.label
                assert right_of(draft, tokens[now:]) == results.accepted[row], policy.label
                row += 1
            row += 1  # the text's end


def right_of(draft: DraftBatch, truth: tuple[int, ...]) -> int:
    """Return how many nodes of one tree lie on the text's own path."""
    is_right = [True]
    for token, parent, depth in zip(draft.tokens[0, 1:], draft.parents[0, 1:], draft.depths[0, 1:], strict=True):
        is_right.append(is_right[parent] and depth <= len(truth) and truth[depth - 1] == token)
    return sum(is_right) - 1


@pytest.mark.parametrize("kind", GROWN)
def test_no_tree_exceeds_its_bounds(kind: str) -> None:
    rows = np.flatnonzero(recorded().rows.left)
    for policy in policies_of(kind):
        draft = grow(policy, RecordedScorer(recorded().drafted, rows), len(rows))
        bounds = policy.bounds
        assert draft.sizes.max() <= bounds.tokens == policy.max_verify_tokens
        assert draft.depths.max() <= bounds.depth and len(draft.widths) <= policy.draft_forwards
        assert max(draft.widths) <= policy.widest_layer <= max(bounds.width, policy.widest_layer)
        assert sum(draft.widths[1:]) <= policy.draft_room(len(rows)) <= policy.draft_room()


@pytest.mark.parametrize("kind", TEXTUAL)
def test_no_copy_exceeds_its_bounds(kind: str) -> None:
    for policy in policies_of(kind):
        if isinstance(policy, TextPolicy) and "mapped" not in policy.code:
            tree = batch_of([TextState().draft([1, 2, 3] * 9, policy)])
            assert tree.tokens.shape[1] <= policy.bounds.tokens and tree.depths.max() <= policy.bounds.depth


@pytest.mark.parametrize("kind", [kind for kind, one in REGISTRY.items() if one.grid_place is not None])
def test_a_grid_holds_what_a_verify_can_feed(kind: str) -> None:
    found = list(REGISTRY[kind].grid(recorded(), Limits(most_tokens=9, resumes=True)))
    assert found and {one.policy.kind for one in found} == {kind}
    assert len({(one.policy, one.searched_on) for one in found}) == len(found)
    for policy, results, _ in found:
        assert policy.max_verify_tokens <= 9 and results.sizes.max() <= policy.max_verify_tokens
        assert len(results.sizes) == len(recorded().rows.left)


@pytest.mark.parametrize("kind", KINDS)
def test_a_space_makes_its_kind_and_knows_its_knobs(kind: str) -> None:
    space = REGISTRY[kind].space(CHILDREN, 24)
    if space is None:
        assert REGISTRY[kind].search_place is None or REGISTRY[kind].is_of_one_cell
        return
    for end in ("low", "high"):
        knobs = {name: float(getattr(range_, end)) for name, range_ in space.ranges.items()}
        policy = space.policy(knobs)
        assert policy.kind == space.kind == kind and policy.max_verify_tokens <= 24
        assert space.knobs(policy) == pytest.approx(knobs)


def test_what_no_model_drafts_is_not_grown() -> None:
    for strategy in REGISTRY.values():
        if strategy.source not in ("none", "model"):
            for policy in policies_of(strategy.own_kind()):
                with pytest.raises(PlanError, match="one scorer"):
                    refuse(policy)


def refuse(policy: Strategy) -> None:
    grow(policy, RecordedScorer(recorded().drafted, np.array([0])), 1)
