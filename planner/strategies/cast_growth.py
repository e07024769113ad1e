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
from ..kernels.arrays import Floats
from ..kernels.compiled import compiled
from ..records.candidates import NOTHING, Candidates
from ..records.draft import Array, Growth
from ..records.ops import Ops

if TYPE_CHECKING:
    from .cast import CastPolicy

Trees = TypeVar("Trees")
IMPOSSIBLE = -1e300  # ranks before what is not real, and behind the log-probability of anything possible


def grow_cast(policy: CastPolicy, ops: Ops[Trees]) -> Growth[Trees]:
    """Return trees of one shared size and shared widths, with each sequence's own nodes.

    With all thresholds 0 it is EAGLE-2's tree for top_k = max_width, depth = max_depth - 1. What the batch prunes is a
    mask (1, candidates) that all sequences share. A pruned candidate ranks behind every other one, even behind those of
    probability 0.
    """
    costs = costs_of(policy)
    tree = yield from Candidates.below_root(ops, policy.max_width)
    is_real: list[Array] = [] if _is_known(tree.scores) else [ops.row((True,) * tree.count)]
    is_open, ratios, last, survived = True, [1.0], None, list[Array]()
    while True:
        survived.append(survivals(policy.survival, tree.scores, tree.depth, ops))
        if tree.depth == policy.max_depth:
            break
        real = is_real[-1] if is_real else None
        ranked = best_real(tree.scores, policy.max_width, real, ops)
        utilities = _utilities(survived[-1], ranked, ops)
        width = 1
        if ranked.shape[1] > 1:
            width = steepest(utilities, ops.row(costs.breadth)[:, : utilities.shape[1]], policy.breadth, real, ops)
            width = width + (width < 1)
        utility = _at(utilities, width, ops)
        if last is not None:
            ratios.append(utility / (last + (last <= 0)) * (last > 0))  # 0 behind what has no utility
        last = utility
        pays = _mean(ratios[-policy.ratio_window :]) * utility >= policy.depth * _at(ops.row(costs.draft), width, ops)
        is_open = pays & is_open
        if ops.stopped(is_open):
            break
        kept = _first(ranked, width, is_open, ops)
        yield from tree.expand(kept)
        if is_real:
            children = tree.scores.shape[1] // tree.widths[-1]
            is_real.append(((kept[:1] >= 0)[:, :, None] & ops.row((True,) * children)).reshape(1, -1))
    real = ops.concat(is_real) if is_real else None
    ranked = best_real(tree.all_scores, policy.max_verify_tokens - 1, real, ops)
    utilities = 1.0 + _utilities(ops.concat(survived), ranked, ops)
    verify = ops.row(costs.verify)[:, : utilities.shape[1]]
    drafts = steepest(utilities, verify, policy.rerank, real, ops)  # of every sequence, may be 0
    kept = _first(ranked, drafts, True, ops)
    return tree.tree(ops.marked(kept, kept >= 0, tree.count), ranked.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A policy's costs in units of one plain decoding step."""

    draft: tuple[float, ...]  # by width
    breadth: tuple[float, ...]  # the same, entry 0 the fixed cost of a forward
    verify: tuple[float, ...]  # by drafted nodes


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
    )


def breadth_origin(draft_cost: Sequence[float]) -> float:
    """Return c_0: the fixed cost of a drafter forward, from those of width 1 and 2."""
    return min(max(2 * draft_cost[1] - draft_cost[2], 0.0), draft_cost[1])


def survivals(curves: tuple[SurvivalCurve, ...], scores: Array, depth: int, ops: Ops[Any]) -> Array:
    """Return (batch, candidates) float64: the chance that each candidate of a layer is on the target's own path.

    Without survival curves it is the drafter's own path probability; else to the bit what the depth's curve tells.
    `scores` holds path log-probabilities, -inf where there is no candidate; `depth` is 1 for the root's children.
    """
    if not curves:
        return ops.exp(scores)
    curve = curves[min(depth, len(curves)) - 1]
    survived = curve.at(scores) if _is_known(scores) else _on(curve, ops.double(scores), ops)
    return ops.where(scores > NOTHING, survived, 0.0)


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


def _is_known(values: Array) -> bool:
    """Return whether the host knows them, so that nothing that the batch prunes is a mask."""
    return isinstance(values, np.ndarray)


def _on(curve: SurvivalCurve, values: Array, ops: Ops[Any]) -> Array:
    """Return what `curve.at` returns, to the bit, of tensors (batch, any) of float64."""
    slopes = _slopes(curve)
    is_below = ~(values >= curve.log_probs[0])  # what is no number, too
    values = ops.where(is_below, curve.log_probs[0], values)
    left = (values[:, :, None] >= ops.row(curve.log_probs)).sum(axis=2) - 1
    step, height, slope = (ops.take(ops.rows(of), left) for of in (curve.log_probs, curve.survivals, slopes))
    return ops.where(is_below, curve.survivals[0], slope * (values - step) + height)


@lru_cache(maxsize=256)
def _slopes(curve: SurvivalCurve) -> tuple[float, ...]:
    """Return the slope behind each point of a curve, 0 behind the last; cached, a tree is grown every round."""
    gaps = np.diff(curve.log_probs)  # of two points in one place the slope is never asked
    rises = np.divide(np.diff(curve.survivals), gaps, out=np.zeros_like(gaps), where=gaps > 0)
    return (*rises.tolist(), 0.0)


def best_real(scores: Array, count: int, is_real: Array, ops: Ops[Any]) -> Array:
    """Return what `ops.best` returns; what is not real comes behind in order, even behind what is never drawn."""
    if is_real is not None:
        scores = ops.where(is_real, ops.where(scores > NOTHING, ops.double(scores), IMPOSSIBLE), -np.inf)
    return ops.best(scores, count)


def _first(places: Array, count: Array, is_open: Array, ops: Ops[Any]) -> Array:
    """Return (batch, any): the first `count` places of each row; a device pads with -1, also where not open."""
    if _is_known(places):
        return places[:, :count]
    return ops.where((ops.row(range(places.shape[1])) < count) & is_open, places, -1)


def _at(values: Array, place: Array, ops: Ops[Any]) -> Array:
    """Return the number at a place of the only row: the host's own where it knows all, else (1, 1)."""
    if _is_known(values):
        return float(values[0, place])
    return values[:, place : place + 1] if isinstance(place, int) else ops.take(values, place)


def steepest(gains: Array, costs: Array, threshold: float, is_real: Array, ops: Ops[Any]) -> Array:
    """Return `last_steep` of (1, any) float64 up to as many places as are real, as a number as `_at` does.

    On a device all comparisons are made at once, to the bit those of a loop: from each place to the first behind it
    that is steep enough, or to itself. Following this path is squared in log2 steps.
    """
    count = gains.shape[1]
    if _is_known(gains):
        return last_steep(gains[0], costs[0], count - 1, float(threshold))
    places = ops.row(range(count))
    is_next = gains - gains.reshape(-1, 1) >= threshold * (costs - costs.reshape(-1, 1))
    is_next = is_next & (places > places.reshape(-1, 1))
    if is_real is not None:
        is_next = is_next & (places <= is_real.sum())
    first = (is_next.cumsum(axis=1) == 0).sum(axis=1).reshape(1, -1)  # `count` where there is none
    following = ops.where(first < count, first, places)
    for _ in range(count.bit_length()):
        following = ops.take(following, following)
    return following[:, :1]


@compiled
def last_steep(gains: Floats, costs: Floats, last: int, threshold: float) -> int:
    """Return the last place whose secant from the place accepted before is steep enough.

    found = 0;  k becomes `found` iff  gains[k] - gains[found] >= threshold * (costs[k] - costs[found]),  k = 1 .. last

    The product form accepts k exactly if gains[k] - threshold * costs[k] is at least its running maximum; so the result
    is the largest arg-max of that, for every cost curve. It does not rise with the threshold if costs do not fall.
    Source: Hong et al. 2025, arXiv:2510.26577, Algorithm 1 "Select Maximum Valid Index" (reconstructed).
    """
    found = 0
    for place in range(1, last + 1):
        if gains[place] - gains[found] >= threshold * (costs[place] - costs[found]):
            found = place
    return found
