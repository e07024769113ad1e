"""Cheap bounds on what a policy can reach, so that hopeless ones need no replay.

    next(p)  = p + tokens kept at position p
    reach(p) = max over q <= p of next(q)

A walk along `reach` is at least as far after every round as one along `next`, so it needs no more rounds. No round
costs less than the smallest shapes at the cheapest measured context; waiting slots only add to that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..records.draft import Ints
from ..records.recording import Rows
from ..records.results import PositionResults
from .round import RoundCosts

ONE = np.ones(1, dtype=np.int64)  # token that a drafter catches up with, at least


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound:
    """What a policy's rounds come to at best."""

    most_tokens: float  # mean per sequence and round
    nodes: Ints  # (1,), of the smallest tree of a round
    widths: Ints  # (1, forwards), the least nodes of each drafter forward
    censored_share: float  # of the positions, those whose result the trace leaves open

    def least_ms(self, costs: RoundCosts) -> float:
        """Return the milliseconds that no round falls below, at the least costs of its kind."""
        return float(costs.ms(self.nodes, ONE, self.widths)[0])


def bound_of(results: PositionResults, rows: Rows) -> Bound:
    """Return what a policy's rounds come to at best, at any batch."""
    return Bound(
        most_tokens=most_tokens_per_round(results, rows),
        nodes=_least(results.sizes[:, None], rows)[0],
        widths=results.widths if len(results.widths) == 1 else _least(results.widths, rows),
        censored_share=float(results.censored.mean()),
    )


def most_tokens_per_round(results: PositionResults, rows: Rows) -> float:
    """Return a bound on the tokens per sequence and round of a policy, at any batch: of the walks along `reach`."""
    after = np.maximum.accumulate(np.arange(len(rows.left)) + np.minimum(results.accepted + 1, rows.left))
    at, rounds = rows.starts, 0
    while running := int(np.count_nonzero(at < rows.ends)):  # a tenth of what sums of few numbers take
        rounds += running
        at = after[at]
    return float((rows.ends - rows.starts).sum()) / rounds


def _least(of_rows: Ints, rows: Rows) -> Ints:
    """Return (1, columns): the least of the rows (rows, columns) at which rounds start; no end of a text is one."""
    spans = np.array([rows.starts, rows.ends]).T.ravel()
    least: Ints = np.minimum.reduceat(of_rows, spans)[::2].min(axis=0, keepdims=True)
    return least
