"""Exact expected time per token of a hierarchy of drafters (HSD), by renewal theory.

    N_i      tokens one call of level i returns        T_i   its threshold
    Y_i      tokens one verification by level i yields  s_k   chance that the first k drafts are all accepted
    C_i      mean milliseconds of a call                c_i   milliseconds of a forward, o_i host time of it

    N_0 = T_0,   C_0 = T_0 (c_0(1) + o_0)   or what the block drafter takes for T_0 tokens
    P(Y_i = y) = (s_{y-1} - s_y) P(N_{i-1} >= y) + s_{y-1} P(N_{i-1} = y - 1)
    u_i(0) = 1,  u_i(s) = sum over y of P(Y_i = y) u_i(s - y)          chance that a call stands at s tokens once
    R_i = sum over s < T_i of u_i(s)                                   rounds per call
    P(N_i = m) = sum over s < T_i of u_i(s) P(Y_i = m - s),  m >= T_i
    C_i = R_i (C_{i-1} + E[c_i(N_{i-1} + 1)] + o_i)
    time per token = (C_{K-1} + E[c_K(N_{K-1} + 1)] + o_K) / E[sum over k <= N_{K-1} of s_k]

Overshoot N_i > T_i counts, but a draft is cut to the most drafts of the edge above. "Truncated" cuts every level to T_i
(HSD-T). Cutting by count alone is lossless. With a tree the last line has its cost and expected tokens.

Assumptions: acceptance depends on the pair of models (and the place in a block draft) alone; forwards run one after the
other; generation is long.

Source: after Globerson et al. 2025, arXiv:2510.19705; the formulas are derived here, and tested against simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .records import Hierarchy, HierarchyInputs
from .tables import Floats, Ints, Stack, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelShare:
    """What one level contributes."""

    name: str
    threshold: int | None  # T; None for the target
    tokens_per_call: float  # E[N]; for the target, tokens per round
    rounds_per_call: float  # R, verifications in a call; 1 for the source and the target
    forwards_per_token: float  # forwards (drafting acts of a block) per token of the target
    ms_per_token: float  # of the level alone
    share: float  # of the whole time per token


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyLatency:
    """Expected time of a hierarchy in the long run, and its levels, lowest first, the target last."""

    ms_per_token: float
    tokens_per_round: float
    levels: tuple[LevelShare, ...]


def exact_latency(inputs: HierarchyInputs, hierarchy: Hierarchy, *, truncated: bool = False) -> HierarchyLatency:
    """Return the expected time per token under independent acceptances, level by level.

    `truncated` cuts levels to their thresholds (HSD-T), else overshoot counts (HSD). PlanError: inputs do not fit.
    """
    tables = Tables(inputs)
    stack = tables.stack_of(hierarchy)
    if not stack.nodes:
        alone = LevelShare(
            name=inputs.models[-1].name,
            threshold=None,
            tokens_per_call=1.0,
            rounds_per_call=1.0,
            forwards_per_token=1.0,
            ms_per_token=tables.plain_ms,
            share=1.0,
        )
        return HierarchyLatency(ms_per_token=tables.plain_ms, tokens_per_round=1.0, levels=(alone,))
    return _explained(tables, stack, _calls(tables, _Rows(tables, [stack]), truncated))


def latencies_ms(tables: Tables, stacks: Sequence[Stack], *, truncated: bool = False) -> Floats:
    """Return (stacks,): milliseconds per token of each; infinite where a stack is not allowed."""
    found = np.full(len(stacks), np.inf)
    by_height: dict[int, list[int]] = {}
    for place, stack in enumerate(stacks):
        if not stack.nodes:
            found[place] = tables.plain_ms
        elif all(t <= limit for t, limit in zip(stack.thresholds, tables.limits_of(stack), strict=True)):
            by_height.setdefault(len(stack.nodes), []).append(place)
    for places in by_height.values():
        rows = _Rows(tables, [stacks[place] for place in places])
        top = _calls(tables, rows, truncated)[-1]
        found[places] = _round_ms(tables, rows, top) / _round_tokens(tables, rows, top)
    return found


def renewals(steps: Floats, most: int) -> Floats:
    """Return (..., most): u(s), the chance that a walk with these steps ever is at s = 0 .. most - 1.

    `steps` (..., tokens + 1) is the law of one step; entry 0 is not read, steps are at least 1.
    """
    longest = steps.shape[-1] - 1
    reached = np.zeros((*steps.shape[:-1], most))
    reached[..., 0] = 1.0
    for place in range(1, most):
        back = min(place, longest)
        before = reached[..., place - back : place][..., ::-1]
        reached[..., place] = np.einsum("...y,...y->...", steps[..., 1 : back + 1], before)
    return reached


class _Rows:
    """Stacks of equal height as arrays (rows, levels), with their limits."""

    def __init__(self, tables: Tables, stacks: Sequence[Stack]) -> None:
        self.nodes: Ints = np.array([stack.nodes for stack in stacks], dtype=np.int64)
        self.thresholds: Ints = np.array([stack.thresholds for stack in stacks], dtype=np.int64)
        self.finish: Ints = np.array([stack.finish for stack in stacks], dtype=np.int64)
        between = tables.limit[self.nodes[:, 1:], self.nodes[:, :-1]]
        self.limits: Ints = np.column_stack((between, tables.finish_limit[self.finish]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Calls:
    """One level's calls, a row per stack."""

    law: Floats  # (rows, tokens + 1), of N
    ms: Floats  # (rows,), C
    rounds: Floats  # (rows,), R
    forward_ms: Floats  # (rows,), mean time of one of its verifications; of the whole call for the source


def _calls(tables: Tables, rows: _Rows, truncated: bool) -> list[_Calls]:
    levels = [_source(tables, rows)]
    for level in range(1, rows.nodes.shape[1]):
        levels.append(_verifying(tables, rows, level, levels[-1], truncated))
    return levels


def _source(tables: Tables, rows: _Rows) -> _Calls:
    nodes, tokens = rows.nodes[:, 0], rows.thresholds[:, 0]
    law = np.zeros((len(nodes), int(tokens.max()) + 1))
    law[np.arange(len(nodes)), tokens] = 1.0
    is_model = nodes <= tables.target
    single_ms = tables.single_ms[np.where(is_model, nodes, 0)]
    ms = np.where(is_model, tokens * single_ms, tables.block_ms[nodes, tokens])
    return _Calls(law=law, ms=ms, rounds=np.ones(len(nodes)), forward_ms=ms)


def _verifying(tables: Tables, rows: _Rows, level: int, below: _Calls, truncated: bool) -> _Calls:
    edge = (rows.nodes[:, level], rows.nodes[:, level - 1])
    thresholds = rows.thresholds[:, level]
    drafts = below.law.shape[1] - 1
    forward_ms = _mean(below.law, tables.verify_ms[edge][:, : drafts + 1])
    steps = _steps(below.law, tables.survival[edge][:, : drafts + 1])
    reached = renewals(steps, int(thresholds.max()))
    reached[np.arange(reached.shape[1]) >= thresholds[:, None]] = 0.0
    rounds = reached.sum(axis=1)
    law = _overshot(reached, steps, thresholds)
    law = _cut(law, thresholds if truncated else rows.limits[:, level])
    return _Calls(law=law, ms=rounds * (below.ms + forward_ms), rounds=rounds, forward_ms=forward_ms)


def _steps(law: Floats, survival: Floats) -> Floats:
    """Return (rows, drafts + 2): law of Y over N's law; entry 0 is 0."""
    rows, size = law.shape
    at_least = law[:, ::-1].cumsum(axis=1)[:, ::-1]
    steps = np.zeros((rows, size + 1))
    steps[:, 1:size] = (survival[:, :-1] - survival[:, 1:]) * at_least[:, 1:]
    steps[:, 1:] += survival * law
    return steps


def _overshot(reached: Floats, steps: Floats, thresholds: Ints) -> Floats:
    """Return (rows, tokens + 1): law of the place where the walk first stands at its threshold or beyond."""
    rows, most = reached.shape
    law = np.zeros((rows, most + steps.shape[1] - 1))
    for place in range(most):
        law[:, place : place + steps.shape[1]] += reached[:, place, None] * steps
    law[np.arange(law.shape[1]) < thresholds[:, None]] = 0.0
    return law


def _cut(law: Floats, limits: Ints) -> Floats:
    size = min(law.shape[1], int(limits.max()) + 1)
    beyond = np.arange(law.shape[1]) > limits[:, None]
    lost = np.where(beyond, law, 0.0).sum(axis=1)
    kept = np.where(beyond, 0.0, law)[:, :size]
    kept[np.arange(len(kept)), np.minimum(limits, size - 1)] += lost
    return kept


def _round_ms(tables: Tables, rows: _Rows, top: _Calls) -> Floats:
    return top.ms + _mean(top.law, tables.finish_ms[rows.finish][:, : top.law.shape[1]])


def _round_tokens(tables: Tables, rows: _Rows, top: _Calls) -> Floats:
    return _mean(top.law, tables.finish_tokens[rows.finish][:, : top.law.shape[1]])


def _mean(law: Floats, values: Floats) -> Floats:
    """Return (rows,): the values' mean; what cannot happen may be infinite."""
    mean: Floats = np.einsum("rn,rn->r", law, np.where(law > 0.0, values, 0.0))
    return mean


def _explained(tables: Tables, stack: Stack, levels: Sequence[_Calls]) -> HierarchyLatency:
    rows, names = _Rows(tables, [stack]), tables.inputs.node_names
    tokens = float(_round_tokens(tables, rows, levels[-1])[0])
    total_ms = float(_round_ms(tables, rows, levels[-1])[0]) / tokens
    verify_ms = total_ms - float(levels[-1].ms[0]) / tokens

    def share(name: str, threshold: int | None, calls: _Calls | None, forwards: float, ms: float) -> LevelShare:
        return LevelShare(
            name=name,
            threshold=threshold,
            tokens_per_call=tokens if calls is None else float(calls.law[0] @ np.arange(calls.law.shape[1])),
            rounds_per_call=1.0 if calls is None else float(calls.rounds[0]),
            forwards_per_token=forwards,
            ms_per_token=ms,
            share=ms / total_ms if total_ms > 0.0 else 0.0,
        )

    shares = [share(names[tables.target], None, None, 1.0 / tokens, verify_ms)]
    calls_per_token = 1.0 / tokens
    for node, threshold, calls in reversed(list(zip(stack.nodes, stack.thresholds, levels, strict=True))):
        rounds = calls_per_token * float(calls.rounds[0])
        is_single = calls is levels[0] and node <= tables.target
        forwards = rounds * threshold if is_single else rounds
        shares.append(share(names[node], threshold, calls, forwards, rounds * float(calls.forward_ms[0])))
        calls_per_token = rounds
    return HierarchyLatency(ms_per_token=total_ms, tokens_per_round=tokens, levels=tuple(reversed(shares)))
