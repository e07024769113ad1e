"""The policies whose short rounds tell what rounds of every kind take beyond their forwards."""

from __future__ import annotations

from ...planner.records.tree import TokenTree
from ...planner.strategies import TreePolicy
from ...planner.strategies.cacheback import CachebackPolicy
from ...planner.strategies.cast import CastPolicy
from ...planner.strategies.chain import ChainPolicy
from ...planner.strategies.confident_chain import ConfidentChainPolicy
from ...planner.strategies.eagle2 import Eagle2Policy
from ...planner.strategies.exit_chain import ResumedPolicy
from ...planner.strategies.hybrid import HybridPolicy
from ...planner.strategies.lookup import LookupPolicy
from ...planner.strategies.opt_tree import OptTreePolicy
from ...planner.strategies.plain import PlainPolicy
from ...planner.strategies.stack import StackPolicy, stack_name
from ...planner.strategies.static import StaticPolicy
from ...planner.strategies.suffix import SuffixPolicy
from ...planner.strategies.suffix_tree import SuffixTreePolicy
from ...planner.strategies.talon import TalonPolicy
from ...runtime.setup import RoundSetup
from .decoding import LOOKUP

MOST_PROBED = 32  # tokens of the largest rounds that are timed
FEWEST_PROBED = 8  # that probes can be limited to
ALWAYS = -1.0  # a least gain that every layer reaches


def probes(drafter: str | None, most_tokens: int = MOST_PROBED) -> list[RoundSetup]:
    """Return one or more policies per kind that show its cost per forward and per node.

    What a round, a node and a drafter's presence cost is shared by all kinds (`profiler/records/overhead.py`): small
    and large texts, chains and EAGLE-2 trees tell it. Of the other drafted kinds, which have a cost per forward of
    their own, one tells that. They prune nothing where they can be told not to, so that their shapes do not hang on
    what the drafter thinks.

    Args:
        drafter: that drafts where one does; None where the family has none.
        most_tokens: of a sequence that are verified at once, at least 8.
    """
    large, copied = min(24, most_tokens), min(32, most_tokens - 1)
    longest = min(8, most_tokens - 1)
    setups: list[tuple[TreePolicy, str | None]] = [
        (PlainPolicy(), None),
        (LookupPolicy(length=2, max_ngram=2), LOOKUP),
        (LookupPolicy(length=longest, max_ngram=2), LOOKUP),
        (SuffixPolicy(length=2, factor=8), LOOKUP),
        (SuffixPolicy(length=copied, factor=8), LOOKUP),
        (SuffixTreePolicy(nodes=6, factor=8, least_chance=0.0), LOOKUP),
        (SuffixTreePolicy(nodes=large, factor=24, least_chance=0.0), LOOKUP),
        (CachebackPolicy(nodes=6), LOOKUP),
        (CachebackPolicy(nodes=large), LOOKUP),
    ]
    if drafter is not None:
        policies: list[TreePolicy] = [
            ChainPolicy(length=1),
            ChainPolicy(length=longest),
            ConfidentChainPolicy(length=longest, confidence=0.0),
            StaticPolicy(tree=_bush(3, min(5, (most_tokens - 1) // 3))),
            Eagle2Policy(verify_tokens=6, depth=1, top_k=2),
            Eagle2Policy(verify_tokens=large, depth=4, top_k=6),
            TalonPolicy(nodes=large, top_k=6, children=6, max_depth=5),
            OptTreePolicy(nodes=large - 1, least_gain=ALWAYS, max_depth=5, children=6),
            _cast(6, 5, large),
            HybridPolicy(text=SuffixPolicy(length=2, min_match=2), model=ChainPolicy(length=1)),
            HybridPolicy(text=SuffixPolicy(length=longest, min_match=2), model=ChainPolicy(length=4)),
            ResumedPolicy(draft=ChainPolicy(length=4)),
        ]
        setups.extend((policy, drafter) for policy in policies)
        stack = StackPolicy(drafters=(drafter, LOOKUP), lengths=(4, 4))
        setups.append((stack, stack_name(stack)))
    return [RoundSetup(policy=policy, drafter=name) for policy, name in setups]


def _bush(width: int, depth: int) -> TokenTree:
    """Return a tree whose first child at every depth has `width` children."""
    parents, ranks, trunk = [-1], [0], 0
    for _ in range(depth):
        first = len(parents)
        parents.extend([trunk] * width)
        ranks.extend(range(width))
        trunk = first
    return TokenTree(parents=tuple(parents), ranks=tuple(ranks))


def _cast(width: int, depth: int, tokens: int) -> CastPolicy:
    """Return a CAST policy that prunes nothing, so its shape is its caps."""
    return CastPolicy(
        breadth=0.0,
        depth=0.0,
        rerank=0.0,
        max_width=width,
        max_depth=depth,
        max_verify_tokens=tokens,
        ratio_window=4,
        draft_cost_ms=(0.0, *([1.0] * width)),
        verify_cost_ms=(0.0, *([1.0] * tokens)),
    )
