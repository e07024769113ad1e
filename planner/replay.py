"""Decode the recorded texts again, round by round, as the runtime does.

`batch` slots run in lock-step. Before a round the next texts enter at the end of the running
list; after it, finished ones leave in slot order, each giving its slot to the last of the list.
Rounds count while every slot is busy: the steady state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import PlanError
from .acceptance import PositionResults
from .draft import Ints
from .growth import grow
from .policy import TreePolicy
from .recorded import RecordedScorer, Recording, Rows

Advance = Callable[[list[int]], list[int]]  # rows of the running sequences -> tokens each keeps


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Every round of the steady state.

    Attributes:
        contexts: (rounds,), most tokens in the target's cache over the slots.
        nodes: (rounds,), size of the largest tree over the slots, root included.
        catch_up: (rounds,), tokens per sequence of the drafter's first forward: the most any slot
            committed since it last drafted, 1 right after it entered.
        widths: (rounds, forwards), nodes per sequence of each drafter forward, 0 = did not run.
        texts: (rounds, batch), which text ran in each slot.
        kept: (rounds, batch), tokens each slot emitted.
        censored: slots of all rounds at positions whose result the trace leaves open.
    """

    contexts: Ints
    nodes: Ints
    catch_up: Ints
    widths: Ints
    texts: Ints
    kept: Ints
    censored: int

    @property
    def batch(self) -> int:
        """Slots."""
        return int(self.kept.shape[1])

    @property
    def rounds(self) -> int:
        """Rounds counted."""
        return int(self.kept.shape[0])

    @property
    def tokens(self) -> int:
        """Tokens emitted by all slots in the rounds counted."""
        return int(self.kept.sum())

    @property
    def tokens_per_round(self) -> float:
        """Tokens per sequence and round."""
        return self.tokens / self.kept.size

    @property
    def censored_share(self) -> float:
        """Share of the visited positions whose result the trace leaves open."""
        return self.censored / self.kept.size

    def rounds_by_text(self, texts: int) -> Ints:
        """Return (texts,): in how many of the rounds each text ran."""
        return np.bincount(self.texts.ravel(), minlength=texts)

    def tokens_by_text(self, texts: int) -> Ints:
        """Return (texts,): tokens each text emitted in the rounds counted."""
        return np.bincount(self.texts.ravel(), weights=self.kept.ravel(), minlength=texts).astype(np.int64)


def replay_results(results: PositionResults, rows: Rows, batch: int) -> Replay:
    """Return the rounds of a policy whose tree depends on the committed text alone.

    Raises:
        PlanError: fewer texts than slots.
    """
    kept = np.minimum(results.accepted + 1, rows.left).tolist()
    walked = _walk(rows, batch, lambda at: [kept[row] for row in at])
    widths = _widest(results.widths, walked.at)
    censored = int(results.censored[walked.at].sum())
    return _replay(walked, rows, results.sizes[walked.at].max(axis=1), widths, censored)


def replay_grown(policy: TreePolicy, recording: Recording, batch: int) -> Replay:
    """Return the rounds of a policy that grows its trees over the running sequences together.

    Raises:
        PlanError: fewer texts than slots, or the trace records too few children.
    """
    sizes: list[int] = []
    widths: list[tuple[int, ...]] = []
    censored = 0

    def advance(at: list[int]) -> list[int]:
        nonlocal censored
        rows = np.array(at)
        scorer = RecordedScorer(recording, rows)
        draft = grow(policy, scorer, batch)
        sizes.append(int(draft.sizes.max()))
        widths.append(draft.widths)
        censored += int(scorer.censored.sum())
        accepted = np.maximum(draft.tokens, 0).sum(axis=1)  # the root and padding are -1
        kept: list[int] = np.minimum(accepted + 1, recording.rows.left[rows]).tolist()
        return kept

    walked = _walk(recording.rows, batch, advance)
    padded = np.zeros((len(widths), max(map(len, widths))), dtype=np.int64)
    for row, ran in zip(padded, widths, strict=True):
        row[: len(ran)] = ran
    return _replay(walked, recording.rows, np.array(sizes, dtype=np.int64), padded, censored)


def _widest(widths: Ints, at: Ints) -> Ints:
    """Return (rounds, forwards): every forward as wide as the widest of the running sequences."""
    if len(widths) == 1:
        return np.broadcast_to(widths, (len(at), widths.shape[1]))
    widest: Ints = widths[at].max(axis=1)
    return widest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walk:
    """Per counted round and slot: the row it started at, the tokens it kept, those it kept before."""

    at: Ints
    kept: Ints
    fresh: Ints


def _walk(rows: Rows, batch: int, advance: Advance) -> _Walk:
    waiting = rows.starts.tolist()[::-1]
    if not 1 <= batch <= len(waiting):
        raise PlanError(f"a batch of {batch} needs as many texts, the trace holds {len(waiting)}; record more prompts")
    left = rows.left.tolist()
    running: list[int] = []
    fresh: list[int] = []
    at, kept, before = [], [], []
    while len(running) + len(waiting) >= batch:
        while len(running) < batch:
            running.append(waiting.pop())
            fresh.append(1)
        step = advance(running)
        at.append(running)
        kept.append(step)
        before.append(fresh)
        running = [row + tokens for row, tokens in zip(running, step, strict=True)]
        fresh = step.copy()
        _leave(running, fresh, [row for row in running if not left[row]])
    return _Walk(at=np.array(at), kept=np.array(kept), fresh=np.array(before))


def _leave(running: list[int], fresh: list[int], finished: list[int]) -> None:
    """Let the finished rows, in slot order, give their slots to the last of the list."""
    for row in finished:
        slot = running.index(row)
        running[slot], fresh[slot] = running[-1], fresh[-1]
        running.pop()
        fresh.pop()


def _replay(walked: _Walk, rows: Rows, nodes: Ints, widths: Ints, censored: int) -> Replay:
    return Replay(
        contexts=rows.contexts[walked.at].max(axis=1),
        nodes=nodes,
        catch_up=walked.fresh.max(axis=1),
        widths=widths,
        texts=rows.text_of[walked.at],
        kept=walked.kept,
        censored=censored,
    )
