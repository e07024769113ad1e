"""Where the sequences of a batch stand, as the device knows it before the host does."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from ..models.kernels.best_tokens import go_on_behind
from ..transfer import sent


class BatchState:
    """What a round begins with: written by the host when a run of rounds begins, then by each round for the next.

    Attributes:
        starts: (batch,) int64, tokens in the target's cache.
        counts: (batch,) int64, newest tokens of each text that the drafter has not read; at least 1.
        fresh: (batch, room) int64, these tokens, then any of the vocabulary.
    """

    def __init__(self, batch: int, room: int, device: torch.device) -> None:
        """Have room for that many unread tokens of each sequence; hold nothing yet."""
        self._numbers = torch.zeros(batch * (2 + room), dtype=torch.int64, device=device)
        self.starts, self.counts = self._numbers[:batch], self._numbers[batch : 2 * batch]
        self.fresh = self._numbers[2 * batch :].view(batch, room)
        self._is_live = torch.ones((), dtype=torch.bool, device=device)

    @property
    def newest(self) -> Tensor:
        """The last token of each text, (batch, 1); no cache holds it."""
        return self.fresh if self.fresh.shape[1] == 1 else self.fresh.gather(1, (self.counts - 1).unsqueeze(1))

    def put(self, starts: Many[int], fresh: Many[Many[int]]) -> None:
        """Let a run begin where the host says; the host waits for nothing."""
        batch, room = self.fresh.shape
        tokens = np.zeros((batch, room), dtype=np.int64)
        for row, unread in enumerate(fresh):
            tokens[row, : len(unread)] = unread
        counts = [len(unread) for unread in fresh]
        self._numbers.copy_(sent(np.concatenate((starts, counts, tokens.ravel())), self._numbers.device))

    def advance(self, counts: Tensor, drawn: Tensor) -> None:
        """Go on behind what a round emitted; part of the captured work.

        Args:
            counts: (batch,), tokens emitted, at least 1.
            drawn: (batch, room), these tokens, then any of the vocabulary.
        """
        after = torch.cat((self.starts + counts, counts, drawn.flatten()))
        torch.where(self._is_live, after, self._numbers, out=self._numbers)

    def go_on_behind(self, logits: Tensor, record: Tensor) -> None:
        """Emit what is best behind one token of each row, and go on; part of the captured work of a plain round.

        Args:
            logits: (batch, vocabulary).
            record: (batch, any), of which the last two columns are written; see the kernel.
        """
        go_on_behind(logits, self._numbers, self._is_live, record)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let work that is recorded, and run for that a few times, leave everything as it is."""
        self._is_live.fill_(False)
        try:
            yield
        finally:
            self._is_live.fill_(True)
