"""The cost-aware tree of CAST: widths, depth and size from confidence per measured cost.

    v         path probability of a candidate (product of the drafter's conditionals), or its calibrated survival
    u_k       utility: batch mean of the sum of the k largest v
    c_k       cost of k nodes, normalised by one plain decoding step
    C_1..C_3  thresholds `breadth`, `depth`, `rerank`

Where the paper's printed form is ambiguous, this is done here:

* Cost tables belong to one (batch, context) cell, so no context is quantised (`cast.quantised_context` has the paper's
  rule). The context does not grow with the nodes drafted in the round.
* The paper leaves the *origin* of the index scan open. Theorem 4.1 needs the fixed cost of a step there, so breadth
  extrapolates c_0 = 2 c_1 - c_2, clipped to [0, c_1]. Reranking starts at the root alone: k = 1, u = 1, c = c_1.
* k counts tokens fed, so k = drafted nodes + 1 in reranking.
* The retention test is `>=`; with the printed `>` Theorem 4.1 would return K - 1.
* Breadth expands at least one node: the depth rule decides whether a layer pays at all.
* Reranking sees every recorded candidate, also those breadth did not expand, as EAGLE-2 does.
* The ratios of the depth rule start at {1} in every round, so the tree is a function of the batch's committed text.

Source: Hong et al. 2025, arXiv:2510.26577, Sec. 4, Algorithm 1 (reconstructed), Theorem 4.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..records.candidates import CandidateLayer, all_scores, best_candidates, first_layer, next_layer, tree_of
from ..records.draft import DraftBatch, Ints, LayerScorer, Scores

if TYPE_CHECKING:
    from .cast import CastPolicy

Number = TypeVar("Number", float, Fraction)
Floats = NDArray[np.float64]


def grow_cast(policy: CastPolicy, scorer: LayerScorer) -> DraftBatch:
    """Return trees of one shared size and shared widths, with each sequence's own nodes.

    With all thresholds 0 it is EAGLE-2's tree for top_k = max_width, depth = max_depth - 1.
    """
    draft_cost = [cost / policy.verify_cost_ms[1] for cost in policy.draft_cost_ms]
    layers = [first_layer(scorer, policy.max_width)]
    ratios = deque([1.0], maxlen=policy.ratio_window)
    last_utility = 0.0
    while len(layers) < policy.max_depth:
        ranked = best_candidates(layers[-1].scores, policy.max_width)
        utilities = _utilities(survivals(policy, layers[-1].scores, len(layers)), ranked)
        width = _kept_width(utilities, draft_cost, policy.breadth)
        if len(layers) > 1:
            ratios.append(utilities[width] / last_utility if last_utility > 0 else 0.0)
        last_utility = utilities[width]
        if _mean(ratios) * last_utility < policy.depth * draft_cost[width]:
            break
        layers.append(next_layer(scorer, layers[-1], ranked[:, :width], policy.max_width))
    return _reranked(policy, layers)


def select_max_valid_index(utilities: Sequence[Number], costs: Sequence[Number], threshold: Number) -> int:
    """Return the last index whose secant from the index accepted before is steep enough.

    last = 0;  k becomes `last` iff  u[k] - u[last] >= threshold * (c[k] - c[last]),  k = 1, 2, ...

    Entry 0 is the origin. The product form accepts k exactly if u[k] - threshold * c[k] is at least its running
    maximum; so the result is the largest arg-max of u - threshold * c, for every cost curve. It does not increase with
    the threshold if costs do not decrease. Works on floats and on exact fractions.

    Source: arXiv:2510.26577, Algorithm 1 "Select Maximum Valid Index" (reconstructed).
    """
    last = 0
    for index in range(1, len(utilities)):
        if utilities[index] - utilities[last] >= threshold * (costs[index] - costs[last]):
            last = index
    return last


def survivals(policy: CastPolicy, scores: Scores, depth: int) -> Floats:
    """Return (batch, candidates): the chance that each candidate of a layer is on the target's own path.

    Without survival curves it is the drafter's own path probability. `scores` holds path log-probabilities, -inf where
    there is no candidate; `depth` is 1 for the root's children.
    """
    if not policy.survival:
        return np.exp(scores, dtype=np.float64)
    curve = policy.survival[min(depth, len(policy.survival)) - 1]
    return np.where(np.isneginf(scores), 0.0, curve.at(scores.astype(np.float64)))


def _utilities(survived: Floats, ranked: Ints) -> list[float]:
    """Return u_0 = 0, u_1, ...: batch mean of the summed survivals of the best k.

    The compiled replay adds in the same order, sequence by sequence, then node by node, and so decides the same.
    """
    best = survived[np.arange(len(ranked))[:, None], ranked]
    mean = best.cumsum(axis=0)[-1] / len(best)
    return [0.0, *mean.cumsum().tolist()]


def _mean(ratios: Iterable[float]) -> float:
    """Return the mean, added up one by one: how `sum` rounds depends on Python's version."""
    total, count = 0.0, 0
    for ratio in ratios:
        total, count = total + ratio, count + 1
    return total / count


def _kept_width(utilities: list[float], draft_cost: list[float], threshold: float) -> int:
    """Return n_i, at least 1: how many nodes of the layer the next drafter forward expands."""
    most = len(utilities) - 1
    if most == 1:
        return 1
    costs = [breadth_origin(draft_cost), *draft_cost[1 : most + 1]]
    return max(1, select_max_valid_index(utilities, costs, threshold))


def breadth_origin(draft_cost: Sequence[float]) -> float:
    """Return c_0: the fixed cost of a drafter forward, from those of width 1 and 2."""
    return min(max(2 * draft_cost[1] - draft_cost[2], 0.0), draft_cost[1])


def _reranked(policy: CastPolicy, layers: Sequence[CandidateLayer]) -> DraftBatch:
    """Return the tree of the best m candidates; m is shared by the batch and may be 0."""
    scores = all_scores(layers)
    ranked = best_candidates(scores, policy.max_verify_tokens - 1)
    survived = [survivals(policy, layer.scores, depth) for depth, layer in enumerate(layers, start=1)]
    utilities = [1.0 + utility for utility in _utilities(np.concatenate(survived, axis=1), ranked)]
    costs = [cost / policy.verify_cost_ms[1] for cost in policy.verify_cost_ms[1 : len(utilities) + 1]]
    drafts = select_max_valid_index(utilities, costs, policy.rerank)
    return tree_of(layers, ranked[:, :drafts])
