"""State of a batch's sequences on the device, where it is current before it is on the host."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...planner.kernels.arrays import Ints
from ...planner.records.draft import DraftBatch
from ..batch.stopwatch import Moment
from ..batch.transfer import host_memory
from ..growth.draft import batch_of
from ..growth.layout import tree_bits
from ..kernels.trees import SOUND, hear
from ..models.forward import ForwardInput, TreeMask
from ..models.kernels.best_tokens import Noise, go_on_behind


class BatchState:
    """The start of a round: written by the host when a run of rounds begins, then by each round for the next.

    Attributes:
        numbers: (batch * (2 + room),) int64: `starts`, `counts` and `fresh`, which are views of it.
        is_live: () bool; while it is false no round changes the state.
        starts: (batch,) tokens in the target's cache.
        counts: (batch,) newest tokens of each text that a drafter has not read, or that held texts lack; at least 1.
        fresh: (batch, room), these tokens, then any of the vocabulary.
        text_bits: (batch, room, words), what tokens of a text see of each other, as in a `TreeMask`.
    """

    def __init__(self, batch: int, room: int, device: torch.device) -> None:
        self.numbers = torch.zeros(batch * (2 + room), dtype=torch.int64, device=device)
        self.starts, self.counts = self.numbers[:batch], self.numbers[batch : 2 * batch]
        self.fresh = self.numbers[2 * batch :].view(batch, room)
        self._staged, self._sent = host_memory(self.numbers).zero_(), Moment(device)  # what the host says, on its way
        self.is_live = torch.ones((), dtype=torch.bool, device=device)
        self._places = torch.arange(room, device=device)
        self.text_bits = tree_bits((self._places.unsqueeze(1) >= self._places).expand(batch, room, room))

    @property
    def newest(self) -> Tensor:
        """The last token of each text, (batch, 1), which no cache holds."""
        return self.fresh if self.fresh.shape[1] == 1 else self.fresh.gather(1, (self.counts - 1).unsqueeze(1))

    def put(self, starts: Many[int], fresh: Many[Many[int]]) -> None:
        """Write the start of a run from the host, without waiting for the device."""
        batch, room = self.fresh.shape
        self._sent.wait()  # for what was put before, which has long left
        said: Ints = self._staged.numpy()
        said[:batch] = starts
        said[batch : 2 * batch] = [len(unread) for unread in fresh]
        tokens = said[2 * batch :].reshape(batch, room)
        for row, unread in enumerate(fresh):
            tokens[row, : len(unread)] = unread
        self.numbers.copy_(self._staged, non_blocking=True)
        self._sent.mark()

    def advance(self, starts: Tensor, counts: Tensor, drawn: Tensor) -> None:
        """Advance behind emitted tokens: `counts` (batch,) of `drawn` (batch, room), behind `starts` cached tokens."""
        after = torch.cat((starts + counts, counts, drawn.flatten()))
        torch.where(self.is_live, after, self.numbers, out=self.numbers)

    def reading(self, vocabulary: int, seen: int) -> ForwardInput:
        """Return the forward of a drafter's unread tokens; one beyond its vocabulary is read as its last token."""
        cached = self.starts + 1 - self.counts  # the newest token of the text is in neither cache
        columns = cached.unsqueeze(1) + self._places
        return ForwardInput(
            tokens=self.fresh.clamp(max=vocabulary - 1),
            positions=columns,
            columns=columns,
            bias=None,
            seen=seen,
            take=self.counts - 1,
            tree=TreeMask(starts=cached, bits=self.text_bits),
        )

    def go_on_behind(self, logits: Tensor, record: Tensor, noise: Noise | None) -> None:
        """Emit the best of `logits` (batch, vocabulary) with noise, write the record's last columns, and advance."""
        go_on_behind(logits, self.numbers, self.is_live, record, noise)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Leave the state unchanged while work is recorded, which runs it a few times."""
        self.is_live.fill_(False)
        try:
            yield
        finally:
            self.is_live.fill_(True)


LAUNCHED, DRAFTED, DONE = range(3)  # moments of a round on the device


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A round's result."""

    record: Ints  # (batch, any): draft as in `DeviceDraft.numbers`, `best`, `ends`; a later round overwrites it
    nodes: int  # of each tree, its padding included
    widths: tuple[int, ...]  # nodes of each forward of the drafter
    best: Ints  # (batch, n), the target's token behind each node and behind padding
    ends: list[int]  # (batch,), tokens that were in the target's cache behind it
    draft_ms: float  # on the device
    verify_ms: float

    @property
    def draft(self) -> DraftBatch:
        """The drafted trees."""
        return batch_of(self.record[:, : 3 * self.nodes + 1], self.widths)

    def standing(self, most: int, vocabulary: int) -> Ints | None:
        """Return each sequence's count of accepted tokens, then these, (batch, any); None where a tree is malformed."""
        drawn = np.empty((len(self.record), self.nodes + 1), dtype=np.int64)
        return drawn if hear(self.record, self.nodes, most, vocabulary, drawn) == SOUND else None


def told_of(record: Tensor, moments: Many[Moment], *, nodes: int, widths: tuple[int, ...], drafts: bool) -> Told:
    """Return the result of a round that is over; `drafts`: a model drafted, so that `moments` has DRAFTED."""
    numbers: Ints = record.numpy()
    begun = DRAFTED if drafts else LAUNCHED  # what verifies
    return Told(
        record=numbers,
        nodes=nodes,
        widths=widths,
        best=numbers[:, 3 * nodes + 1 : -1],
        ends=numbers[:, -1].tolist(),
        draft_ms=moments[LAUNCHED].ms_until(moments[DRAFTED]) if drafts else 0.0,
        verify_ms=moments[begun].ms_until(moments[DONE]),
    )
