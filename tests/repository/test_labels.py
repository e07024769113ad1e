"""The page of labels has the label of every policy, as policies write them."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from spectune.planner.records.fly_rule import FlyRule
from spectune.planner.records.pad_rule import PadRule
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.cacheback import CachebackPolicy
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.fly import FlyPolicy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.naming import name_of
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.pad import PadPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.suffix_tree import SuffixTreePolicy
from spectune.planner.strategies.talon import TalonPolicy

from ..support.synthetic import model

WORDS = (Path(__file__).parents[2] / "docs" / "reference" / "labels.md").read_text()
TREE = TokenTree(parents=(-1, 0, 1, 2, 0, 0, 1, 1), ranks=(0, 0, 0, 0, 1, 2, 1, 2))
SUFFIX = SuffixPolicy(length=32, min_match=2, occurrence="last")
SUFFIX_TREE = SuffixTreePolicy(nodes=16, factor=4, offset=1, least_chance=0.05, least_score=3.0)
COSTS_MS = (0.0, *[1.0] * 60)
CAST = CastPolicy(
    breadth=4.0, depth=3.0, rerank=2.5, max_width=10, max_depth=8, max_verify_tokens=60, ratio_window=4,
    draft_cost_ms=COSTS_MS, verify_cost_ms=COSTS_MS,
)  # fmt: skip
POLICIES: tuple[TreePolicy, ...] = (
    PlainPolicy(),
    ChainPolicy(length=3),
    ConfidentChainPolicy(),
    StaticPolicy(tree=TREE),
    Eagle2Policy(verify_tokens=9, depth=1, top_k=4),
    TalonPolicy(),
    OptTreePolicy(max_depth=9),
    CAST,
    LookupPolicy(length=10, max_ngram=2, occurrence="first"),
    SUFFIX,
    SuffixTreePolicy(nodes=6, factor=4, offset=1, least_chance=0.02),
    CachebackPolicy(),
    HybridPolicy(text=SUFFIX, model=ChainPolicy(length=3)),
    HybridPolicy(text=SUFFIX_TREE, model=ChainPolicy(length=3)),
    StackPolicy(drafters=("small", "lookup"), lengths=(4, 8)),
    ResumedPolicy(draft=ChainPolicy(length=6)),
    FlyPolicy(draft=ChainPolicy(length=10), rule=FlyRule()),
    PadPolicy(draft=ChainPolicy(length=10), rule=PadRule(), classifier=model("pivots")),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.kind)
def test_a_label_and_its_settings_are_read_as_the_policy_writes_them(policy: TreePolicy) -> None:
    drafter = None if isinstance(policy, PlainPolicy | StackPolicy) else "small"
    if isinstance(policy, ResumedPolicy):
        drafter = "exit"
    assert f"\n| {name_of(policy.code, drafter)} | `{policy.code}` |" in WORDS


def test_every_kind_of_policy_is_read() -> None:
    assert {type(policy) for policy in POLICIES} == set(get_args(TreePolicy))
