"""Decode the recorded texts again, round by round, as the runtime does.

`batch` slots run in lock-step; texts leave and enter as in `kernels/slots.py`.

What counts is each text's share of the rounds from its first to its last: the steady state of an endless stream in
which all texts are equally frequent. Texts that enter again count only as company. If counting ended with the first
empty slot, the texts that still run would be cut short: slow ones, and of copies the ends, where most is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, cycle
from typing import NamedTuple

import numpy as np

from ..errors import PlanError
from .kernels.rounds import walk
from .kernels.slots import NOBODY, Numbering, Rounds
from .records.draft import Bools, Ints
from .records.recording import Rows
from .records.results import PositionResults
from .records.slots import Slots


class Step(NamedTuple):
    """One round of all slots."""

    kept: list[int]  # tokens that each slot emits
    nodes: int  # of the largest tree, root included
    widths: tuple[int, ...]  # nodes per sequence of each drafter forward
    is_censored: tuple[bool, ...] = ()  # of each slot, whether the trace leaves its result open; () of none


Advance = Callable[[list[int], list[int]], Step]  # rows, and tokens that are new there -> what the round there does


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Every round of the steady state, see above.

    Attributes:
        catch_up: (rounds,), tokens per sequence of the drafter's first forward, if it runs: the most any slot committed
            since the drafter last ran, 1 right after it entered.
    """

    contexts: Ints  # (rounds,), most tokens in the target's cache over the slots
    nodes: Ints  # (rounds,), size of the largest tree over the slots, root included
    catch_up: Ints
    widths: Ints  # (rounds, forwards), nodes per sequence of each drafter forward, 0 = did not run
    texts: Ints  # (rounds, batch), which text ran in each slot; NOBODY where it does not count
    kept: Ints  # (rounds, batch), tokens each slot emitted
    censored: int  # counted slots, over all rounds, at positions whose result the trace does not determine

    @property
    def batch(self) -> int:
        """Slots."""
        return int(self.kept.shape[1])

    @property
    def rounds(self) -> int:
        """Rounds in which any slot counts."""
        return int(self.kept.shape[0])

    @property
    def counts(self) -> Bools:
        """(rounds, batch), whether what a slot did in a round counts."""
        counts: Bools = self.texts != NOBODY
        return counts

    @property
    def tokens(self) -> int:
        """Tokens that count: those of every text."""
        return int(self.kept[self.counts].sum())

    @property
    def tokens_per_round(self) -> float:
        """Tokens per sequence and round."""
        return self.tokens / int(self.counts.sum())

    @property
    def censored_share(self) -> float:
        """Share of the visited positions whose result the trace does not determine."""
        return self.censored / int(self.counts.sum())

    @property
    def arrays(self) -> Rounds:
        """What kernels read."""
        return Rounds(self.contexts, self.nodes, self.catch_up, self.widths, self.texts, self.kept)


def replay_results(results: PositionResults, rows: Rows, batch: int) -> Replay:
    """Return the rounds of a policy whose tree depends on the committed text alone; PlanError if texts are too few."""
    rounds = room_for(rows, batch, results.widths.shape[1])
    return replayed(rounds, *walk(numbering_of(rows), results.arrays, rounds))


def numbering_of(rows: Rows) -> Numbering:
    """Return the numbering of positions as kernels take it."""
    return Numbering(rows.starts, rows.left, rows.contexts, rows.text_of)


def room_for(rows: Rows, batch: int, forwards: int) -> Rounds:
    """Return room for any replay's rounds: each slot emits at least one token per round."""
    _require_texts(rows, batch)
    most = (len(rows.left) - len(rows.starts)) // batch + int(rows.left[rows.starts].max())
    contexts, nodes, catch_up = np.empty((3, most), dtype=np.int64)
    texts, kept = np.empty((2, most, batch), dtype=np.int64)
    return Rounds(contexts, nodes, catch_up, np.empty((most, forwards), dtype=np.int64), texts, kept)


def replayed(rounds: Rounds, count: int, censored: int) -> Replay:
    """Return the rounds that a kernel wrote, `censored` of whose positions are."""
    return Replay(
        contexts=rounds.contexts[:count],
        nodes=rounds.nodes[:count],
        catch_up=rounds.catch_up[:count],
        widths=rounds.widths[:count],
        texts=rounds.texts[:count],
        kept=rounds.kept[:count],
        censored=censored,
    )


def replay_stepped(rows: Rows, batch: int, advance: Advance) -> Replay:
    """Return the rounds of any decoder, which `advance` runs in order; PlanError if texts are fewer than slots.

    It takes the rows of the running sequences in slot order, and the tokens each committed since the last round, or 1.
    """
    steps: list[Step] = []

    def noted(at: list[int], fresh: list[int]) -> list[int]:
        steps.append(advance(at, fresh))
        return steps[-1].kept

    walked = _walk(rows, batch, noted)
    widths = [step.widths for step in steps]
    padded = np.zeros((len(widths), max(map(len, widths))), dtype=np.int64)
    for row, ran in zip(padded, widths, strict=True):
        row[: len(ran)] = ran
    nodes = np.array([step.nodes for step in steps], dtype=np.int64)
    is_censored = np.array([step.is_censored or (False,) * batch for step in steps])
    return Replay(
        contexts=rows.contexts[walked.at].max(axis=1),
        nodes=nodes,
        catch_up=walked.fresh.max(axis=1),
        widths=padded,
        texts=walked.texts,
        kept=walked.kept,
        censored=int(is_censored[walked.texts != NOBODY].sum()),
    )


def _require_texts(rows: Rows, batch: int) -> None:
    texts = len(rows.starts)
    if not 1 <= batch <= texts:
        raise PlanError(f"a batch of {batch} needs as many texts, the trace holds {texts}; record more prompts")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Walk:
    """Per round and slot: the row it started at, its text or NOBODY, the tokens it emitted, and those before."""

    at: Ints
    texts: Ints
    kept: Ints
    fresh: Ints


@dataclass(slots=True)
class _RunningText:
    row: int
    text: int
    fresh: int = 1


def _walk(rows: Rows, batch: int, advance: Callable[[list[int], list[int]], list[int]]) -> _Walk:
    _require_texts(rows, batch)
    left, starts = rows.left.tolist(), rows.starts.tolist()
    entering = chain(enumerate(starts), ((NOBODY, start) for start in cycle(starts)))
    missing = len(starts)
    slots = Slots[_RunningText]()
    running = slots.running
    at, texts, kept, before = [], [], [], []
    while missing:
        while len(running) < batch:
            text, start = next(entering)
            slots.join(_RunningText(start, text))
        at.append([one.row for one in running])
        texts.append([one.text for one in running])
        before.append([one.fresh for one in running])
        kept.append(advance(at[-1], before[-1]))
        for one, tokens in zip(running, kept[-1], strict=True):
            one.row, one.fresh = one.row + tokens, tokens
        for one in [one for one in running if not left[one.row]]:
            slots.leave(one)
            missing -= one.text != NOBODY
    return _Walk(at=np.array(at), texts=np.array(texts), kept=np.array(kept), fresh=np.array(before))
