"""Cheap bounds on what a policy can reach, so that hopeless ones need no replay.

    next(p)  = p + tokens kept at position p
    reach(p) = max over q <= p of next(q)

A walk that follows `reach` needs no more rounds than one that follows `next`: it is at least as far after every round.
And no round costs less than its shapes cost at the cheapest measured context. Slots that wait for each other only add
to that.

The steady state ends where a slot stays empty. The texts that still run, fewer than the batch, are then left behind
some round of theirs, all others are whole. With q_i(k) for how far text i has come after k rounds of `reach`

    tokens per round <= max over k of  sum over i of q_i(k_i) / sum over i of k_i,    k_i free for batch - 1 texts

which Dinkelbach's iteration finds: at a rate r, text i is worth max over k of (q_i(k) - r k) where it is left, and the
texts that are worth most more than whole are left.

Source: Dinkelbach 1967, On nonlinear fractional programming.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..policies.resumed import RESUMED
from ..replay.acceptance import PositionResults
from ..replay.recorded import Rows
from .cost import CellCosts
from .table import CostTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reach:
    """How far a policy comes at most in every text.

    Attributes:
        tokens: (rounds + 1, texts), emitted after so many rounds; whole texts in the last row.
        rounds: (rounds + 1, texts), run by then; none are added once a text is at its end.
    """

    tokens: Ints
    rounds: Ints


def reach_of(results: PositionResults, rows: Rows) -> Reach:
    """Return how far a policy comes at most after every round."""
    positions = np.arange(len(rows.left))
    after = np.maximum.accumulate(positions + np.minimum(results.accepted + 1, rows.left))
    walked = [rows.starts]
    while (walked[-1] < rows.ends).any():
        walked.append(after[walked[-1]])
    at = np.array(walked)
    ran = np.vstack([np.zeros_like(rows.starts), at[:-1] < rows.ends])
    return Reach(tokens=at - rows.starts, rounds=ran.cumsum(axis=0))


def most_tokens_per_round(reach: Reach, batch: int) -> float:
    """Return a bound on the tokens per sequence and round of a policy in the steady state of a batch."""
    last, texts = len(reach.tokens) - 1, np.arange(reach.tokens.shape[1])
    whole = len(texts) - (min(batch, len(texts)) - 1)  # texts that are at their end when the steady state is
    stops, rate = np.full(len(texts), last), 0.0
    while True:
        found = float(reach.tokens[stops, texts].sum() / reach.rounds[stops, texts].sum())
        if found <= rate:
            return rate
        rate = found
        ahead = reach.tokens - rate * reach.rounds
        best = ahead.argmax(axis=0)
        left = np.argsort(ahead[best, texts] - ahead[last])[whole:]
        stops = np.full(len(texts), last)
        stops[left] = best[left]


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
