"""What one policy does at every row of a numbering of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..growth.grow import grow
from ..kernels.rounds import Results
from ..records.draft import Bools, Ints
from ..strategies.chain import ChainPolicy
from ..strategies.confident_chain import ConfidentChainPolicy
from ..strategies.eagle2 import Eagle2Policy
from ..strategies.opt_tree import OptTreePolicy
from ..strategies.static import StaticPolicy
from ..strategies.talon import TalonPolicy
from .recorded import RecordedScorer, Recording

CHUNK = 2048  # rows grown at once, so that the arrays of one layer stay in the processor's cache

StatelessPolicy = ChainPolicy | ConfidentChainPolicy | StaticPolicy | Eagle2Policy | TalonPolicy | OptTreePolicy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PositionResults:
    """One policy at every row of a numbering of positions.

    Attributes:
        accepted: (rows,), nodes of the verified tree on the target's own path.
        sizes: (rows,), nodes of the verified tree, root included.
        censored: (rows,), the trace lacks an expansion that could change the result.
        widths: (rows, forwards), nodes of every drafter forward, 0 = did not run; (1, forwards) where it is the same
            at all positions.
    """

    accepted: Ints
    sizes: Ints
    censored: Bools
    widths: Ints

    @property
    def arrays(self) -> Results:
        """What kernels read and write."""
        return Results(self.accepted, self.sizes, self.censored, self.widths)


def empty_results(recording: Recording, forwards: int) -> PositionResults:
    """Return results to write into: zeros, no position censored."""
    rows = len(recording.roots)
    return PositionResults(
        accepted=np.zeros(rows, dtype=np.int64),
        sizes=np.ones(rows, dtype=np.int64),
        censored=np.zeros(rows, dtype=np.bool_),
        widths=np.zeros((rows, forwards), dtype=np.int64),
    )


def same_everywhere(widths: tuple[int, ...]) -> Ints:
    """Return (1, forwards): widths that are the same at all positions."""
    return np.array(widths, dtype=np.int64)[None]


def grown_results(policy: StatelessPolicy, recording: Recording) -> PositionResults:
    """Return what growing the policy gives, many positions at once where all trees are alike."""
    results = empty_results(recording, policy.draft_forwards)
    step = CHUNK if isinstance(policy, ChainPolicy | StaticPolicy | Eagle2Policy) else 1
    for start in range(0, len(recording.roots), step):
        rows = np.arange(start, min(start + step, len(recording.roots)))
        scorer = RecordedScorer(recording, rows)
        draft = grow(policy, scorer, len(rows))
        results.accepted[rows] = np.maximum(draft.tokens, 0).sum(axis=1)
        results.sizes[rows] = draft.sizes
        results.censored[rows] = scorer.censored
        results.widths[rows, : len(draft.widths)] = draft.widths
    return results
