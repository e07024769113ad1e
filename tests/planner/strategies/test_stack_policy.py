"""Stacks as policies: their bounds, names and ranges, and their way through JSON and plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from spectune.errors import PlanError
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.records.draft import Children, Ints
from spectune.planner.strategies import policy_from_json, policy_to_json
from spectune.planner.strategies.base import Bounds, grow
from spectune.planner.strategies.stack import StackPolicy, stack_name

from ...support.plans import plan_of
from ...support.synthetic import model

THREE = StackPolicy(drafters=("medium", "small"), lengths=(4, 2))
LOOKED_UP = StackPolicy(drafters=("medium", "small", "lookup"), lengths=(6, 3, 2), max_ngram=4, min_ngram=2, siblings=2)


@pytest.mark.parametrize("policy", [THREE, LOOKED_UP], ids=lambda policy: policy.code)
def test_json_gives_back_the_same_stack(policy: StackPolicy) -> None:
    assert policy_from_json(policy_to_json(policy)) == policy


def test_a_code_tells_levels_ngrams_and_siblings() -> None:
    assert THREE.code == "stack of medium 4 over small 2"
    assert LOOKED_UP.code == "stack of medium 6 over small 3 over lookup 2 after 4..2-grams, 2 siblings"


def test_a_stack_is_called_by_its_drafters_whatever_their_lengths() -> None:
    assert stack_name(LOOKED_UP) == "medium+small+lookup"
    assert stack_name(THREE) == stack_name(replace(THREE, lengths=(9, 9)))


def test_the_models_are_the_drafters_but_the_text() -> None:
    assert LOOKED_UP.models == THREE.models == ("medium", "small")


def test_the_longest_chain_is_one_below_every_length_and_a_token_on_top_of_what_is_handed_up() -> None:
    """Level 2 holds 1 and is handed 2: it hands up 1 + 2 + 1 = 4; level 1 holds 3 and is handed 4: 3 + 4 + 1."""
    assert StackPolicy(drafters=("a", "b", "c"), lengths=(4, 2, 2)).max_chain == 8


def test_verified_are_the_root_the_chain_and_the_siblings_of_each_of_its_tokens() -> None:
    assert THREE.max_verify_tokens == 7
    assert LOOKED_UP.max_verify_tokens == 1 + 11 * 3


def test_forwards_are_most_where_every_verification_yields_one_token() -> None:
    assert THREE.draft_forwards == 4 + 4 * 2
    assert LOOKED_UP.draft_forwards == 6 + 6 * 3  # a lookup runs none
    assert StackPolicy(drafters=("a",), lengths=(5,)).draft_forwards == 5


def test_no_sequence_influences_anothers_chain() -> None:
    assert not THREE.is_coupled(8)


def test_a_batch_needs_room_where_rows_wait_for_each_other() -> None:
    assert THREE.draft_room(1) == 6
    assert THREE.draft_room(4) == THREE.draft_room() == 2 * 6 + 2


def test_a_stacks_trees_differ_from_round_to_round() -> None:
    assert THREE.fixed_tree is None
    assert LOOKED_UP.bounds == Bounds(depth=11, width=6, tokens=34)


class Nobody:
    """A scorer that must not be asked."""

    def root(self, children: int) -> Children:
        raise AssertionError

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        raise AssertionError


def test_one_drafter_cannot_grow_a_stack() -> None:
    with pytest.raises(PlanError, match="drafted by several models"):
        grow(THREE, Nobody(), 1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: StackPolicy(drafters=(), lengths=()),
        lambda: StackPolicy(drafters=("lookup",), lengths=(3,)),  # that is a LookupPolicy
        lambda: StackPolicy(drafters=("lookup", "small"), lengths=(3, 3)),  # a text cannot verify
        lambda: StackPolicy(drafters=("small", "small"), lengths=(3, 3)),
        lambda: StackPolicy(drafters=("a+b", "small"), lengths=(3, 3)),
        lambda: StackPolicy(drafters=("", "small"), lengths=(3, 3)),
        lambda: StackPolicy(drafters=("medium", "small"), lengths=(3,)),
        lambda: StackPolicy(drafters=("medium", "small"), lengths=(3, 0)),
        lambda: replace(THREE, siblings=-1),
        lambda: replace(LOOKED_UP, max_ngram=1),
        lambda: replace(LOOKED_UP, min_ngram=0),
    ],
)
def test_a_stack_out_of_range_is_refused(build: Callable[[], StackPolicy]) -> None:
    with pytest.raises(PlanError):
        build()


def plan_with(policy: StackPolicy, drafter: str, known: tuple[str, ...] = ("small", "medium")) -> Plan:
    plan = plan_of([(1, 100)])
    run_tokens = tuple(np.arange(policy.max_verify_tokens + 1).tolist())
    cell = replace(plan.cells[0], policy=policy, drafter=drafter, run_tokens=run_tokens)
    return replace(plan, drafters=tuple((name, model(name)) for name in known), cells=(cell,))


def test_a_plan_with_a_stack_comes_back_from_its_document() -> None:
    plan = plan_with(LOOKED_UP, "medium+small+lookup")
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan.cells[0].drafters == ("medium", "small", "lookup")


def test_a_plans_stack_must_know_all_its_models() -> None:
    with pytest.raises(PlanError, match="not among the plan's drafters"):
        plan_with(THREE, "medium+small", known=("medium",))


def test_a_cells_drafter_must_be_its_stacks_name() -> None:
    with pytest.raises(PlanError, match="drafted by 'medium\\+small', got 'small'"):
        plan_with(THREE, "small")
