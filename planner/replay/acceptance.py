"""What a policy would have kept at every position of the recorded texts.

Only policies whose tree depends on the committed text alone have such results; CAST with several
sequences has none and is replayed round by round.
"""

from __future__ import annotations

import numpy as np

from ..records.draft import Bools, Ints
from ..records.tree import TokenTree
from ..strategies.chain import ChainPolicy
from ..strategies.confident_chain import ConfidentChainPolicy
from ..strategies.eagle2 import Eagle2Policy
from ..strategies.opt_tree import OptTreePolicy
from ..strategies.static import StaticPolicy
from ..strategies.talon import TalonPolicy
from ..text.results import lookup_results, text_results
from .positions import PositionResults, StatelessPolicy, grown_results, same_everywhere
from .recorded import Recording, Rows
from .sweeps import confident_chain_results, eagle2_results, opt_tree_results, talon_results

__all__ = [
    "PositionResults",
    "confident_chain_results",
    "eagle2_results",
    "lookup_results",
    "opt_tree_results",
    "path_ranks",
    "plain_results",
    "rank_results",
    "results_of",
    "talon_results",
    "text_results",
]

UNKNOWN = -1  # which child the target's path takes cannot be told
RankPolicy = ChainPolicy | StaticPolicy


def plain_results(rows: Rows) -> PositionResults:
    """Return the results of drafting nothing."""
    return _of_one_size(np.zeros(len(rows.left), dtype=np.int64), 1, ())


def rank_results(policy: RankPolicy, recording: Recording) -> PositionResults:
    """Return the results of a chain or a static tree.

    With a prefix-exact trace the node on the target's path at depth d below position t is the root
    at t + d, so next_rank alone decides; otherwise the path is followed on the recorded expansions, and a position is
    censored where one that the tree goes on from was not recorded.
    """
    if isinstance(policy, StaticPolicy):
        widths = policy.tree.widths
        return _tree_results(policy.tree, recording, widths)
    if not recording.is_prefix_exact:
        return grown_results(policy, recording)
    accepted = np.minimum(right_run(recording.next_rank), policy.length)
    return _of_one_size(accepted, policy.length + 1, (1,) * policy.length)


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


def path_ranks(recording: Recording, depths: int) -> Ints:
    """Return (rows, depths): which child of its tree the target's own path takes at depth 1, 2, ... from each row on.

    MISS where it is none of the recorded children, UNKNOWN behind that, behind an expansion that was not recorded, and
    behind the end of the text.
    """
    found = np.full((len(recording.rows.left), depths), UNKNOWN)
    nodes, rows = recording.roots, np.arange(len(found))
    for depth in range(depths):
        is_inside = recording.rows.left > depth
        if recording.is_prefix_exact:
            later = np.minimum(rows + depth, len(rows) - 1)
            found[:, depth] = np.where(is_inside, recording.next_rank[later], UNKNOWN)
            continue
        is_told = is_inside & (nodes != recording.missing)
        ranks = recording.hit_rank[nodes]
        found[:, depth] = np.where(is_told, ranks, UNKNOWN)
        is_hit = is_told & (ranks < recording.children)
        below = recording.child[nodes, np.where(is_hit, ranks, 0)].astype(np.int64)
        nodes = np.where(is_hit, below, recording.missing)
    return found


def _tree_results(tree: TokenTree, recording: Recording, widths: tuple[int, ...]) -> PositionResults:
    """Return how far the target's own path goes in the same tree of ranks at every row."""
    ranks = max(tree.ranks) + 1
    below = np.full((tree.size + 1, ranks + 1), tree.size)  # the last node is "left the tree", the last rank a miss
    below[list(tree.parents[1:]), list(tree.ranks[1:])] = np.arange(1, tree.size)
    is_inner = np.append(np.isin(np.arange(tree.size), tree.parents[1:]), False)
    found = path_ranks(recording, tree.depth)
    node, accepted = np.zeros(len(found), dtype=np.int64), np.zeros(len(found), dtype=np.int64)
    is_censored = np.zeros(len(found), dtype=np.bool_)
    for depth in range(tree.depth):
        is_untold = (found[:, depth] == UNKNOWN) & (recording.rows.left > depth)
        is_censored |= is_inner[node] & is_untold
        node = below[node, np.where(found[:, depth] == UNKNOWN, ranks, np.minimum(found[:, depth], ranks))]
        accepted += node < tree.size
    return _of_one_size(accepted, tree.size, widths, is_censored)


def _of_one_size(accepted: Ints, size: int, widths: tuple[int, ...], censored: Bools | None = None) -> PositionResults:
    rows = len(accepted)
    return PositionResults(
        accepted=accepted,
        sizes=np.full(rows, size, dtype=np.int64),
        censored=np.zeros(rows, dtype=np.bool_) if censored is None else censored,
        widths=same_everywhere(widths),
    )
