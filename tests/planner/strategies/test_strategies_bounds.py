"""What strategies say of themselves is what version 68f0804 computed, of 2,001 drawn ones of every kind of then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spectune.planner.strategies import TreePolicy, policy_from_json, policy_to_json
from spectune.runtime.growth.layout import columns_of

from ...support.drawn_bounds import DRAWN, EVERY

HANGS_ON_NO_SCORE = ("chain", "static", "eagle2")


def facts_of(policy: TreePolicy) -> list[Any]:
    tree, copied = policy.fixed_tree, policy.copied_on_gpu
    return [
        *(policy.code, policy.label, policy.draft_forwards, policy.max_verify_tokens, policy.bounds.depth),
        *(policy.draft_room(), policy.draft_room(1), policy.draft_room(4), policy.widest_layer, policy.bounds.width),
        *([*policy.score_widths], policy.is_captured_whole),
        [*policy.widths] if policy.kind in HANGS_ON_NO_SCORE else None,
        policy.most_unread,
        None if tree is None else [[*tree.parents], [*tree.ranks]],
        None if copied is None else copied.code,
        [policy.children, policy.sure_width],
        *(policy.is_coupled(1), policy.is_coupled(2), columns_of(policy)),
    ]


@pytest.mark.parametrize("kind", sorted(DRAWN))
def test_bounds_are_what_they_were(kind: str) -> None:
    for fields, facts in DRAWN[kind]:
        policy = policy_from_json(json.dumps(fields))
        assert json.loads(policy_to_json(policy)) == fields
        assert facts_of(policy) == facts, policy


def test_a_strategy_of_every_kind_was_drawn() -> None:
    assert sum(map(len, EVERY.values())) == 2001
    assert all(len(drawn) == 125 for kind, drawn in EVERY.items() if kind != "plain")
