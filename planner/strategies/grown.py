"""Trees grown at recorded positions, one by one: the reference for sweeps, and the rounds of coupled trees."""

from __future__ import annotations

import numpy as np

from ..lockstep import Replay, Step, replay_stepped
from ..records.recording import RecordedScorer, Recording
from ..records.results import PositionResults, empty_results
from .base import Strategy, grow

CHUNK = 2048  # rows grown at once, so that the arrays of one layer stay in the processor's cache


def grown_results(policy: Strategy, recording: Recording) -> PositionResults:
    """Return the results of growing the policy, many positions at once where all trees are alike."""
    results = empty_results(recording, policy.draft_forwards)
    step = 1 if policy.hangs_on_scores else CHUNK
    for start in range(0, len(recording.roots), step):
        rows = np.arange(start, min(start + step, len(recording.roots)))
        scorer = RecordedScorer(recording, rows)
        draft = grow(policy, scorer, len(rows))
        results.accepted[rows] = np.maximum(draft.tokens, 0).sum(axis=1)
        results.sizes[rows] = draft.sizes
        results.censored[rows] = scorer.censored
        results.widths[rows, : len(draft.widths)] = draft.widths
    return results


def replay_grown(policy: Strategy, recording: Recording, batch: int) -> Replay:
    """Return the rounds of a policy that grows its trees over the running sequences together.

    PlanError if slots outnumber texts, or the trace has too few children.
    """

    def advance(at: list[int], _: list[int]) -> Step:
        rows = np.array(at)
        scorer = RecordedScorer(recording, rows)
        draft = grow(policy, scorer, batch)
        accepted = np.maximum(draft.tokens, 0).sum(axis=1)  # the root and padding are -1
        kept: list[int] = np.minimum(accepted + 1, recording.rows.left[rows]).tolist()
        return Step(kept, int(draft.sizes.max()), draft.widths, tuple(scorer.censored.tolist()))

    return replay_stepped(recording.rows, batch, advance)
