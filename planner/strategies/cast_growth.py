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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...profiler.records.calibration import SurvivalCurve
from ..records.candidates import NOTHING, Candidates
from ..records.draft import Array, Growth
from ..records.ops import Line, Ops

if TYPE_CHECKING:
    from .cast import CastPolicy

Trees = TypeVar("Trees")


def grow_cast(policy: CastPolicy, ops: Ops[Trees]) -> Growth[Trees]:
    """Return trees of one shared size and shared widths, with each sequence's own nodes.

    With all thresholds 0 it is EAGLE-2's tree for top_k = max_width, depth = max_depth - 1. What the batch prunes is a
    mask (1, candidates) that all sequences share. A pruned candidate ranks behind every other one, even behind those of
    probability 0.
    """
    costs = costs_of(policy)
    tree = yield from Candidates.below_root(ops, policy.max_width)
    is_real: list[Array] = [] if ops.is_host else [ops.row((True,) * tree.count)]
    is_open, ratios, last, survived = True, [1.0], None, list[Array]()
    while True:
        survived.append(survivals(costs.lines, tree.scores, tree.depth, ops))
        if tree.depth == policy.max_depth:
            break
        real = is_real[-1] if is_real else None
        ranked = ops.best(tree.scores, policy.max_width, real)
        utilities = _utilities(survived[-1], ranked, ops)
        width = 1
        if ranked.shape[1] > 1:
            width = ops.last_steep(utilities, ops.row(costs.breadth)[:, : utilities.shape[1]], policy.breadth, real)
            width = width + (width < 1)
        utility = ops.at(utilities, width)
        if last is not None:
            ratios.append(utility / (last + (last <= 0)) * (last > 0))  # 0 behind what has no utility
        last = utility
        pays = _mean(ratios[-policy.ratio_window :]) * utility >= policy.depth * ops.at(ops.row(costs.draft), width)
        is_open = pays & is_open
        if ops.stopped(is_open):
            break
        kept = ops.first(ranked, width, is_open)
        yield from tree.expand(kept)
        if not ops.is_host:
            children = tree.scores.shape[1] // tree.widths[-1]
            is_real.append(((kept[:1] >= 0)[:, :, None] & ops.row((True,) * children)).reshape(1, -1))
    real = ops.concat(is_real) if is_real else None
    ranked = ops.best(tree.all_scores, policy.max_verify_tokens - 1, real)
    utilities = 1.0 + _utilities(ops.concat(survived), ranked, ops)
    verify = ops.row(costs.verify)[:, : utilities.shape[1]]
    drafts = ops.last_steep(utilities, verify, policy.rerank, real)  # of every sequence, may be 0
    kept = ops.first(ranked, drafts, True)
    return tree.tree(ops.marked(kept, kept >= 0, tree.count), ranked.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A policy's costs in units of one plain decoding step, and the lines of its survival curves."""

    draft: tuple[float, ...]  # by width
    breadth: tuple[float, ...]  # the same, entry 0 the fixed cost of a forward
    verify: tuple[float, ...]  # by drafted nodes
    lines: tuple[Line, ...]


@lru_cache(maxsize=256)
def costs_of(policy: CastPolicy) -> Costs:
    """Return a policy's costs; cached, a tree is grown every round."""
    unit = policy.verify_cost_ms[1]
    draft = tuple(cost / unit for cost in policy.draft_cost_ms)
    origin = breadth_origin(draft) if policy.max_width > 1 else 0.0
    return Costs(
        draft=draft,
        breadth=(origin, *draft[1:]),
        verify=tuple(cost / unit for cost in policy.verify_cost_ms[1 : policy.max_verify_tokens + 1]),
        lines=lines_of(policy.survival),
    )


def lines_of(curves: tuple[SurvivalCurve, ...]) -> tuple[Line, ...]:
    """Return survival curves as lines over path log-probabilities."""
    return tuple(Line(np.array(curve.log_probs), np.array(curve.survivals)) for curve in curves)


def breadth_origin(draft_cost: Sequence[float]) -> float:
    """Return c_0: the fixed cost of a drafter forward, from those of width 1 and 2."""
    return min(max(2 * draft_cost[1] - draft_cost[2], 0.0), draft_cost[1])


def survivals(lines: tuple[Line, ...], scores: Array, depth: int, ops: Ops[Any]) -> Array:
    """Return (batch, candidates) float64: the chance that each candidate of a layer is on the target's own path.

    Without survival curves it is the drafter's own path probability; else to the bit what the depth's curve tells.
    `scores` holds path log-probabilities, -inf where there is no candidate; `depth` is 1 for the root's children.
    """
    if not lines:
        return ops.exp(scores)
    return ops.where(scores > NOTHING, ops.on(lines[min(depth, len(lines)) - 1], scores), 0.0)


def _utilities(survived: Array, ranked: Array, ops: Ops[Any]) -> Array:
    """Return (1, ranked + 1), u_0 = 0, u_1, ...: batch mean of the summed survivals of the best k.

    The compiled replay adds in the same order, sequence by sequence, then node by node, and so decides the same.
    """
    mean = ops.take(survived, ranked).cumsum(axis=0)[-1:] / ops.batch
    return ops.concat((ops.row((0.0,)), mean.cumsum(axis=1)))


def _mean(ratios: Sequence[Array]) -> Array:
    """Return the mean, added up one by one: how `sum` rounds depends on Python's version."""
    total = ratios[0]
    for ratio in ratios[1:]:
        total = total + ratio
    return total / len(ratios)
