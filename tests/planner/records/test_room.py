"""How many draft nodes a round feeds to a drafter at most, by hand and in the worst case."""

from __future__ import annotations

import numpy as np
import pytest

from spectune.planner.records.draft import Children, Ints
from spectune.planner.records.room import READ_TOGETHER
from spectune.planner.records.tree import TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.base import grow
from spectune.planner.strategies.cast import CastPolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.hybrid import HybridPolicy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.opt_tree import OptTreePolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.planner.strategies.suffix import SuffixPolicy
from spectune.planner.strategies.talon import TalonPolicy

CAST = CastPolicy(
    breadth=0.0,
    depth=0.0,
    rerank=0.0,
    max_width=4,
    max_depth=3,
    max_verify_tokens=5,
    ratio_window=1,
    draft_cost_ms=(0.0, 1.0, 1.0, 1.0, 1.0),
    verify_cost_ms=(0.0, *[1.0] * 5),
)


@pytest.mark.parametrize(
    ("policy", "alone", "together"),
    [
        (PlainPolicy(), 0, 0),
        (LookupPolicy(length=5), 0, 0),
        (ChainPolicy(length=4), 3, 3),
        (ConfidentChainPolicy(length=4), 3, 3),
        (StaticPolicy(tree=TokenTree(parents=(-1, 0, 0, 1, 1, 3), ranks=(0, 0, 1, 0, 1, 0))), 2, 2),  # two inner nodes
        (Eagle2Policy(verify_tokens=60, depth=7, top_k=10), 70, 70),  # more than are verified
        (CAST, 8, 8),
        (OptTreePolicy(nodes=20, children=6, max_depth=4), 6 + 20 + 20, 6 + 20 + 20),
        (TalonPolicy(nodes=8, top_k=3, children=3), 6, 3 + 3 + 2 + 1),
        (TalonPolicy(nodes=8, top_k=3, children=3, max_depth=1), 0, 0),
        (TalonPolicy(nodes=60), 58, 2 * 58),
    ],
    ids=lambda value: value.label if not isinstance(value, int) else str(value),
)
def test_it_is_the_sum_of_the_widest_layers_below_the_root(policy: TreePolicy, alone: int, together: int) -> None:
    assert (policy.draft_room(1), policy.draft_room(2)) == (alone, together)


@pytest.mark.parametrize(
    ("policy", "tokens"),
    [
        (ChainPolicy(length=4), 5),
        (HybridPolicy(text=SuffixPolicy(length=4), model=ChainPolicy(length=2)), READ_TOGETHER),
        (HybridPolicy(text=SuffixPolicy(length=40), model=ChainPolicy(length=2)), 41),
    ],
)
def test_a_drafter_reads_what_a_round_commits_and_a_hybrid_s_model_what_several_do(
    policy: TreePolicy, tokens: int
) -> None:
    assert policy.most_unread == tokens


class Uneven:
    """A drafter of rows whose layers are narrow but for one each: row r spreads out behind layer r + 1."""

    def __init__(self, rows: int):
        """Start at the roots."""
        self.rows, self.depth = rows, 0

    def root(self, children: int) -> Children:
        return self._answer(1, children)

    def expand(self, parents: Ints, ranks: Ints, children: int) -> Children:
        return self._answer(parents.shape[1], children)

    def _answer(self, width: int, children: int) -> Children:
        self.depth += 1
        even, steep = np.zeros(children), -9.0 * np.arange(children)
        rows = [even if self.depth == row + 2 else steep for row in range(self.rows)]
        log_probs = np.repeat(np.array(rows, dtype=np.float32)[:, None], width, axis=1)
        return Children(tokens=np.zeros(log_probs.shape, dtype=np.int64), log_probs=log_probs)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_talons_of_one_batch_together_may_draft_far_more_than_one_and_never_more_than_told(rows: int) -> None:
    policy = TalonPolicy(nodes=14, gate=0.5, top_k=1, children=8)
    drafted = sum(grow(policy, Uneven(rows), rows).widths[1:])
    assert policy.draft_room(1) == 12
    assert drafted <= policy.draft_room(rows) <= policy.draft_room()
    assert rows == 1 or drafted > 12
