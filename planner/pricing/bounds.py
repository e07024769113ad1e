"""Cheap bounds on what a policy can reach, so that hopeless ones need no replay.

    next(p)  = p + tokens kept at position p
    reach(p) = max over q <= p of next(q)

A walk that follows `reach` needs no more rounds than one that follows `next`: it is at least as far after every round.
And no round costs less than its shapes cost at the cheapest measured context. Slots that wait for each other only add
to that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..policies.resumed import RESUMED
from ..replay.acceptance import PositionResults
from ..replay.recorded import Rows
from .cost import CellCosts
from .table import CostTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def most_tokens_per_round(results: PositionResults, rows: Rows) -> float:
    """Return a bound on the tokens per sequence and round of a policy, at any batch: of the walks along `reach`."""
    after = np.maximum.accumulate(np.arange(len(rows.left)) + np.minimum(results.accepted + 1, rows.left))
    at, rounds = rows.starts, 0
    while (is_running := at < rows.ends).any():
        rounds += int(is_running.sum())
        at = after[at]
    return float((rows.ends - rows.starts).sum()) / rounds


def least_round_ms(results: PositionResults, kind: str, drafter: str | None, costs: CellCosts) -> float:
    """Return a bound on the milliseconds of any round of a policy in a cell; infinite where a shape has no price.

    Args:
        results: of the policy.
        kind: of the policy, for the host's share.
        drafter: the model that drafts, None where none does.
        costs: of the cell.
    """
    if kind not in costs.host or (kind == RESUMED and drafter not in costs.resumed):
        return np.inf
    if drafter is not None and drafter not in costs.drafts:
        return np.inf
    nodes, widths = int(results.sizes.min()), results.widths.min(axis=0)
    total = _least(costs.verifying(kind, drafter).table, np.array([nodes]))
    if drafter is not None and widths.any():
        table = costs.drafts[drafter]
        first = table.ms[:, 1:].min()  # it catches up with one token or more
        further = table.paid(widths[None])[0, 1:]
        total += float(first) + _least(table, further[further > 0])
    base, per_forward, per_node = costs.host[kind]
    return total + base + per_forward * int((widths > 0).sum()) + per_node * nodes


def _least(table: CostTable, tokens: NDArray[np.int64]) -> float:
    """Return the sum over forwards of their cost at the context where that sum is least."""
    if not len(tokens):
        return 0.0
    if int(tokens.max()) > table.most_tokens:
        return np.inf
    cheapest: Floats = table.ms[:, tokens].sum(axis=1)
    return float(cheapest.min())
