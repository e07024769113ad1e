"""Two dynamic programmes over hierarchies: one in mean-field, one exact for truncated drafts.

Names as in `latency.py`; S_ij(t) = sum over k <= t of s_k is what verifying t drafts yields.
"""

from __future__ import annotations

import numpy as np

from .latency import renewals
from .records import HierarchyInputs, SolvedHierarchy
from .tables import Floats, Ints, Stack, Tables

MAX_THRESHOLD = 32


def mean_field_hierarchy(inputs: HierarchyInputs, max_threshold: int = MAX_THRESHOLD) -> SolvedHierarchy:
    """Return the best hierarchy if every level drafted exactly its threshold at a constant time per token.

        V(i) = min( c_i(1) + o_i,
                    min over j, t of (t V(j) + c_ij(t + 1) + o_i) / S_ij(t) )       t V(j) is d_j(t) for a block j

    The answer is V(target), its trees included; from three levels on a little optimistic. O(models^2 thresholds).

    Source: derived from arXiv:2510.19705; with two models it is Leviathan et al. 2023, arXiv:2211.17192.
    """
    tables = Tables(inputs)
    return solved(tables, *mean_field_stack(tables, max_threshold))


def best_truncated_hierarchy(inputs: HierarchyInputs, max_threshold: int = MAX_THRESHOLD) -> SolvedHierarchy:
    """Return the best hierarchy whose levels are cut to exactly their thresholds (HSD-T), and its exact time.

        C(i, T) = min( T (c_i(1) + o_i),
                       min over j, t of R_ij(t, T) (C(j, t) + c_ij(t + 1) + o_i) )   C(b, t) = d_b(t) for a block b
        answer  = min( c_K(1) + o_K,
                       min over j, t of (C(j, t) + c_Kj(t + 1) + o_K) / S_Kj(t) )

    R_ij(t, T) is the mean number of rounds in which model i collects T tokens from drafts of t tokens by j. The time
    grows with every C, so the best call of a level is part of the best hierarchy; an upper bound for HSD where forwards
    of more tokens do not take longer. O(models^2 thresholds^3).
    """
    tables = Tables(inputs)
    return solved(tables, *truncated_stack(tables, max_threshold))


def mean_field_stack(tables: Tables, max_threshold: int) -> tuple[Stack, float]:
    """Return the stack of `mean_field_hierarchy` and its time per token."""
    most = min(max_threshold, tables.most_drafts)
    drafted = np.arange(most + 1.0)
    drafts_ms = tables.block_ms[:, : most + 1].copy()
    below: dict[int, tuple[int, int]] = {}  # model -> drafter and its threshold
    for model in range(tables.target):
        value = float(tables.single_ms[model])
        tokens = tables.survival[model, :, : most + 1].cumsum(axis=1)
        values = (drafts_ms + tables.verify_ms[model, :, : most + 1]) / tokens
        drafter, threshold = _least(values)
        if values[drafter, threshold] < value:
            value, below[model] = float(values[drafter, threshold]), (drafter, threshold)
        drafts_ms[model, 1:] = drafted[1:] * value
    finish, threshold, ms = _finished(tables, drafts_ms)
    if finish < 0:
        return Stack(), ms
    nodes, thresholds = [int(tables.finish_drafter[finish])], [threshold]
    while nodes[-1] in below:
        node, threshold = below[nodes[-1]]
        nodes.append(node)
        thresholds.append(threshold)
    return Stack(tuple(reversed(nodes)), tuple(reversed(thresholds)), finish), ms


def truncated_stack(tables: Tables, max_threshold: int) -> tuple[Stack, float]:
    """Return the stack of `best_truncated_hierarchy` and its time per token."""
    most = min(max_threshold, tables.most_drafts)
    verify_ms = tables.verify_ms[:, :, : most + 1]
    rounds, edges = _rounds(tables, most), _edge_numbers(tables)
    calls_ms = tables.block_ms[:, : most + 1].copy()  # C
    below: dict[tuple[int, int], tuple[int, int]] = {}  # (model, T) -> drafter and its threshold
    for model in range(tables.target):
        calls_ms[model, 1:] = np.arange(1, most + 1) * tables.single_ms[model]
        drafters = np.flatnonzero(edges[model] >= 0)
        if len(drafters) == 0:
            continue
        round_ms = calls_ms[drafters, 1:] + verify_ms[model, drafters, 1:]
        stacked = (rounds[edges[model, drafters]] * round_ms[:, :, None]).reshape(-1, most)  # (drafter and t, T)
        best = stacked.argmin(axis=0)
        for call in np.flatnonzero(stacked[best, np.arange(most)] < calls_ms[model, 1:]).tolist():
            calls_ms[model, call + 1] = stacked[best[call], call]
            below[model, call + 1] = (int(drafters[best[call] // most]), int(best[call] % most) + 1)
    finish, threshold, ms = _finished(tables, calls_ms)
    if finish < 0:
        return Stack(), ms
    places = [(int(tables.finish_drafter[finish]), threshold)]
    while places[-1] in below:
        places.append(below[places[-1]])
    nodes, thresholds = zip(*reversed(places), strict=True)
    return Stack(nodes, thresholds, finish), ms


def solved(tables: Tables, stack: Stack, ms_per_token: float) -> SolvedHierarchy:
    """Return the stack in names, with its time."""
    return SolvedHierarchy(hierarchy=tables.hierarchy_of(stack), ms_per_token=ms_per_token)


def _finished(tables: Tables, drafts_ms: Floats) -> tuple[int, int, float]:
    """Return the best finish, the threshold below it and the time per token; -1 if the target alone is fastest."""
    if len(tables.finish_drafter) == 0:
        return -1, 0, tables.plain_ms
    most = drafts_ms.shape[1]
    values = (drafts_ms[tables.finish_drafter] + tables.finish_ms[:, :most]) / tables.finish_tokens[:, :most]
    finish, threshold = _least(values)
    if values[finish, threshold] < tables.plain_ms:
        return finish, threshold, float(values[finish, threshold])
    return -1, 0, tables.plain_ms


def _least(values: Floats) -> tuple[int, int]:
    """Return row and column of the least value, column 0 apart."""
    row, column = divmod(int(values[:, 1:].argmin()), values.shape[1] - 1)
    return row, column + 1


def _edge_numbers(tables: Tables) -> Ints:
    """Return (models, nodes): the edges below the target numbered in order, -1 where there is none."""
    allowed = tables.limit > 0
    allowed[tables.target] = False
    numbers: Ints = np.where(allowed, allowed.cumsum().reshape(allowed.shape) - 1, -1)
    return numbers


def _rounds(tables: Tables, most: int) -> Floats:
    """Return (edges, t, T): R of every edge below the target, for t and T from 1 to `most`."""
    allowed = _edge_numbers(tables) >= 0
    survival = tables.survival[allowed][:, : most + 1]
    drafts, tokens = np.arange(1, most + 1)[:, None], np.arange(1, most)
    stopped = survival[:, None, : most - 1] - survival[:, None, 1:most] * (tokens <= drafts)
    steps = np.zeros((len(survival), most, most))  # (edges, t, y)
    steps[:, :, 1:] = np.where(tokens <= drafts + 1, stopped, 0.0)
    rounds: Floats = renewals(steps, most).cumsum(axis=2)
    return rounds
