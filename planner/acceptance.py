"""What a policy would have kept at every position of the recorded texts.

Only policies whose tree depends on the committed text alone have such results; CAST with several
sequences has none and is replayed round by round.
"""

from __future__ import annotations

import numpy as np

from .draft import Ints
from .policy import (
    ChainPolicy,
    ConfidentChainPolicy,
    Eagle2Policy,
    OptTreePolicy,
    StaticPolicy,
    TalonPolicy,
)
from .positions import PositionResults, StatelessPolicy, grown_results, same_everywhere
from .recorded import Recording, Rows
from .sweeps import confident_chain_results, eagle2_results, opt_tree_results, talon_results
from .text_results import lookup_results, text_results
from .tree import TokenTree

__all__ = [
    "PositionResults",
    "confident_chain_results",
    "eagle2_results",
    "lookup_results",
    "opt_tree_results",
    "plain_results",
    "rank_results",
    "results_of",
    "talon_results",
    "text_results",
]

RankPolicy = ChainPolicy | StaticPolicy


def plain_results(rows: Rows) -> PositionResults:
    """Return the results of drafting nothing."""
    return _of_one_size(np.zeros(len(rows.left), dtype=np.int64), 1, ())


def rank_results(policy: RankPolicy, recording: Recording) -> PositionResults:
    """Return the results of a chain or a static tree.

    With a prefix-exact trace the node on the target's path at depth d below position t is the root
    at t + d, so next_rank alone decides; otherwise the tree is grown on the recorded expansions.
    """
    if not recording.is_prefix_exact:
        return grown_results(policy, recording)
    if isinstance(policy, ChainPolicy):
        accepted = np.minimum(right_run(recording.next_rank), policy.length)
        return _of_one_size(accepted, policy.length + 1, (1,) * policy.length)
    widths = tuple(len(inner) for inner in policy.tree.inner_by_depth())
    return _of_one_size(_tree_hits(policy.tree, recording.next_rank), policy.tree.size, widths)


def results_of(policy: StatelessPolicy, recording: Recording) -> PositionResults:
    """Return the results of any drafted policy whose trees depend on the committed text alone.

    Raises:
        PlanError: the trace records too few children.
    """
    match policy:
        case ChainPolicy() | StaticPolicy():
            return rank_results(policy, recording)
        case ConfidentChainPolicy():
            ((_, results),) = confident_chain_results(recording, [policy.length], [policy.confidence])
        case Eagle2Policy():
            ((_, results),) = eagle2_results(recording, policy.top_k, [policy.depth], [policy.verify_tokens])
        case TalonPolicy():
            tree = (policy.gate, policy.top_k, policy.children)
            ((_, results),) = talon_results(recording, *tree, [policy.nodes], [policy.max_depth])
        case OptTreePolicy():
            ((_, results),) = opt_tree_results(recording, [policy])
    return results


def right_run(next_rank: Ints) -> Ints:
    """Return (rows,): how many tokens from each row on the drafter ranks first; an end stops the run."""
    wrong = np.where(next_rank != 0, np.arange(len(next_rank)), len(next_rank))
    return np.minimum.accumulate(wrong[::-1])[::-1] - np.arange(len(next_rank))


def _tree_hits(tree: TokenTree, next_rank: Ints) -> Ints:
    """Return (rows,): depth of the target's own path in the tree from each row on."""
    ranks = max(tree.ranks) + 1
    below = np.full((tree.size + 1, ranks + 1), tree.size)  # the last node is "left the tree", the last rank a miss
    below[list(tree.parents[1:]), list(tree.ranks[1:])] = np.arange(1, tree.size)
    seen = np.minimum(next_rank, ranks)
    node, accepted = np.zeros(len(seen), dtype=np.int64), np.zeros(len(seen), dtype=np.int64)
    for depth in range(tree.depth):
        ahead = np.full(len(seen), ranks)
        ahead[: len(seen) - depth] = seen[depth:]
        node = below[node, ahead]
        accepted += node < tree.size
    return accepted


def _of_one_size(accepted: Ints, size: int, widths: tuple[int, ...]) -> PositionResults:
    rows = len(accepted)
    return PositionResults(
        accepted=accepted,
        sizes=np.full(rows, size, dtype=np.int64),
        censored=np.zeros(rows, dtype=np.bool_),
        widths=same_everywhere(widths),
    )
