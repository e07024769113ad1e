"""Families of drafted policies at every position of a recording, each from one compiled pass.

Every sweep gives what growing each policy at each position gives. Where the trace lacks an expansion, a position is
censored only if what is missing could change its result. Recordings whose scores are not in order are grown slowly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ..growth.chain import is_sure
from ..kernels.eagle2 import eagle2_sweep
from ..kernels.opt_tree import BestTrees, opt_tree_sweep
from ..kernels.talon import NOT_THERE, Gate, Layers, talon_budget, talon_sweep
from ..records.draft import Bools, Ints, Scores
from ..strategies.confident_chain import ConfidentChainPolicy
from ..strategies.eagle2 import Eagle2Policy
from ..strategies.opt_tree import OptTreePolicy
from ..strategies.talon import TalonPolicy
from .positions import PositionResults, empty_results, grown_results, same_everywhere
from .recorded import Recording


def eagle2_results(
    recording: Recording, top_k: int, depths: Iterable[int], verify_tokens: Sequence[int]
) -> Iterator[tuple[Eagle2Policy, PositionResults]]:
    """Yield the results of every depth and size of one width, all from one beam.

    A shallower beam is the beginning of a deeper one, and a smaller tree the beginning of the
    ranking of a larger one. Sizes beyond the number of candidates are clipped as `grow` does.
    A position is censored where an expansion that was not recorded could push the deepest accepted node out of the
    tree, or hang another one below it.

    Raises:
        PlanError: the trace records too few children.
    """
    wanted, sizes = sorted(set(depths)), sorted(set(verify_tokens))
    policies = [
        Eagle2Policy(verify_tokens=size, depth=depth, top_k=top_k) for depth in wanted for size in verify_tokens
    ]
    if not recording.is_ordered:
        yield from ((policy, grown_results(policy, recording)) for policy in policies)
        return
    recording.require_children(top_k)
    shape = (len(recording.roots), len(wanted), len(sizes))
    accepted, is_censored = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.bool_)
    eagle2_sweep(recording.expansions, top_k, np.array(wanted), np.array(sizes) - 1, accepted, is_censored)
    for policy in policies:
        place = (slice(None), wanted.index(policy.depth), sizes.index(policy.verify_tokens))
        yield (
            policy,
            PositionResults(
                accepted=accepted[place].astype(np.int64),
                sizes=np.full(shape[0], policy.max_verify_tokens, dtype=np.int64),
                censored=is_censored[place].copy(),
                widths=same_everywhere((1,) + (top_k,) * policy.depth),
            ),
        )


def talon_results(
    recording: Recording, gate: float, top_k: int, children: int, nodes: Sequence[int], max_depths: Sequence[int]
) -> Iterator[tuple[TalonPolicy, PositionResults]]:
    """Yield the results of every budget and depth of one gate, all from one tree of the largest budget.

    A position is censored where a child of an expansion that was not recorded could pass the gate and find room.

    Raises:
        PlanError: the trace records too few children.
    """
    policies = [
        TalonPolicy(nodes=budget, gate=gate, top_k=top_k, children=children, max_depth=depth)
        for depth in max_depths
        for budget in nodes
    ]
    if not recording.is_ordered:
        yield from ((policy, grown_results(policy, recording)) for policy in policies)
        return
    recording.require_children(children)
    shape = (len(recording.roots), max(policy.draft_forwards for policy in policies))
    layers = Layers(
        added=np.zeros(shape, dtype=np.int32),
        own_places=np.full(shape, NOT_THERE, dtype=np.int32),
        told=np.empty(shape, dtype=np.int32),
    )
    deepest = talon_sweep(recording.expansions, Gate(math.log(gate), top_k, children), max(nodes) - 1, layers)
    for policy in policies:
        results = empty_results(recording, min(deepest, policy.max_depth))
        talon_budget(layers, policy.nodes - 1, results.arrays)
        yield policy, results


def opt_tree_results(
    recording: Recording, policies: Sequence[OptTreePolicy]
) -> Iterator[tuple[OptTreePolicy, PositionResults]]:
    """Yield the results of OPT-Trees; those of one number of nodes and children come from one pass.

    A position is censored where a child of an expansion that was not recorded could be among the best candidates. The
    widths are those of layers that have all their candidates.

    Raises:
        PlanError: the trace records too few children.
    """
    if not recording.is_ordered:
        yield from ((policy, grown_results(policy, recording)) for policy in policies)
        return
    alike: dict[tuple[int, int], list[OptTreePolicy]] = {}
    for policy in policies:
        alike.setdefault((policy.nodes, policy.children), []).append(policy)
    for group in alike.values():
        yield from _opt_trees(recording, group)


def _opt_trees(recording: Recording, policies: list[OptTreePolicy]) -> Iterator[tuple[OptTreePolicy, PositionResults]]:
    nodes, children = policies[0].nodes, policies[0].children
    recording.require_children(children)
    shape = (len(recording.roots), max(policy.max_depth for policy in policies))
    trees = BestTrees(
        expected=np.zeros(shape),
        accepted=np.zeros(shape, dtype=np.uint8),
        drafted=np.zeros(shape, dtype=np.int32),
        is_untold=np.zeros(shape, dtype=np.bool_),
    )
    opt_tree_sweep(recording.expansions, recording.survivals(), nodes, children, trees)
    gains = np.diff(trees.expected, axis=1, prepend=0.0)
    widths = list(accumulate(range(1, shape[1]), lambda width, _: min(nodes, width * children), initial=1))
    for policy in policies:
        pays = np.logical_and.accumulate(gains[:, : policy.max_depth - 1] > policy.least_gain, axis=1)
        last = (np.arange(shape[0]), pays.sum(axis=1))  # the layer each tree ends with
        yield (
            policy,
            PositionResults(
                accepted=trees.accepted[last].astype(np.int64),
                sizes=1 + trees.drafted[last].astype(np.int64),
                censored=trees.is_untold[last],
                widths=np.where(np.arange(policy.max_depth) <= last[1][:, None], widths[: policy.max_depth], 0),
            ),
        )


def confident_chain_results(
    recording: Recording, lengths: Sequence[int], confidences: Sequence[float]
) -> Iterator[tuple[ConfidentChainPolicy, PositionResults]]:
    """Yield the results of chains of every length and confidence, all from one walk along the drafter's own choices.

    A position is censored where a chain goes on behind an expansion that was not recorded. With a prefix-exact trace,
    one on the target's own path is found again as the root of a later position.
    """
    chains = _chains(recording, max(lengths))
    for length in lengths:
        for confidence in confidences:
            policy = ConfidentChainPolicy(length=length, confidence=confidence)
            yield policy, chains.results(policy)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chains:
    """The drafter's first choices below every row: (rows, length) each."""

    log_probs: Scores
    right: Ints  # how many of the first so many are the target's own
    is_recorded: Bools  # the expansion that chose this token

    def results(self, policy: ConfidentChainPolicy) -> PositionResults:
        """Return what a policy takes of these chains."""
        goes_on = np.logical_and.accumulate(is_sure(self.log_probs[:, : policy.length - 1], policy.confidence), axis=1)
        drafted = 1 + goes_on.sum(axis=1)
        is_drafted = np.arange(policy.length) < drafted[:, None]
        return PositionResults(
            accepted=np.minimum(self.right, drafted),
            sizes=1 + drafted,
            censored=(is_drafted & ~self.is_recorded[:, : policy.length]).any(axis=1),
            widths=is_drafted.astype(np.int64),
        )


def _chains(recording: Recording, length: int) -> _Chains:
    rows = np.arange(len(recording.roots))
    shape = (len(rows), length)
    log_probs, is_recorded = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.bool_)
    nodes, right = recording.roots, np.zeros(len(rows), dtype=np.int64)
    for depth in range(length):
        if recording.is_prefix_exact:
            later = np.minimum(rows + depth, len(rows) - 1)
            is_found = (nodes == recording.missing) & (right == depth) & (depth < recording.rows.left)
            nodes = np.where(is_found, recording.roots[later], nodes)
        log_probs[:, depth], is_recorded[:, depth] = recording.log_probs[nodes, 0], nodes != recording.missing
        right += (right == depth) & (recording.hit_rank[nodes] == 0)
        nodes = recording.child[nodes, 0].astype(np.int64)
    return _Chains(log_probs=log_probs, right=right, is_recorded=is_recorded)
