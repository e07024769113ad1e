"""Round setups: how many tokens a verify really feeds, and the room a round needs."""

from __future__ import annotations

import pytest

from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.talon import TalonPolicy
from spectune.runtime.batch.step_config import PLAIN, StepConfig, always, draft_room

PADDED = StepConfig(policy=ChainPolicy(length=3), drafter="d", run_tokens=(0, 2, 2, 8))


@pytest.mark.parametrize(("tokens", "fed"), [(1, 2), (2, 2), (3, 8), (4, 4), (9, 9)])
def test_a_verify_is_padded_as_far_as_the_table_reaches(tokens: int, fed: int) -> None:
    assert PADDED.padded(tokens) == fed


def test_nothing_is_padded_without_a_table() -> None:
    assert [PLAIN.padded(tokens) for tokens in range(1, 5)] == [1, 2, 3, 4]


def test_the_most_tokens_are_those_of_the_policy_or_of_its_padding() -> None:
    assert PADDED.most_tokens == 8
    assert StepConfig(policy=ChainPolicy(length=3)).most_tokens == 4
    assert PLAIN.most_tokens == 1


def test_a_round_needs_room_for_the_larger_of_what_is_drafted_and_what_is_verified() -> None:
    assert draft_room([PLAIN]) == 2
    assert draft_room([PLAIN, PADDED]) == 9  # 8 verified, 2 drafted
    wide = StepConfig(policy=OptTreePolicy(nodes=5, children=4, max_depth=4), drafter="d")
    assert draft_room([PLAIN, PADDED, wide]) == 1 + 4 + 5 + 5


def test_an_unknown_batch_needs_room_for_any() -> None:
    setup = StepConfig(policy=TalonPolicy(), drafter="d")
    assert draft_room([setup], 1) < draft_room([setup], 8) < draft_room([setup])


def test_always_is_the_same_setup_everywhere() -> None:
    assert always(PADDED)(1, 0) is always(PADDED)(8, 4000) is PADDED
