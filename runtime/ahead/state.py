"""Where the sequences of a batch stand, as the device knows it before the host does."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager

import torch
from torch import Tensor

from ...planner.kernels.arrays import Ints
from ..growth.layout import tree_bits
from ..models.forward import ForwardInput, TreeMask
from ..models.kernels.best_tokens import Noise, go_on_behind
from ..stopwatch import Moment
from ..transfer import host_memory


class BatchState:
    """What a round begins with: written by the host when a run of rounds begins, then by each round for the next.

    Attributes:
        numbers: (batch * (2 + room),) int64, the next three behind each other.
        is_live: () bool; where it is false no round goes on.
        starts: (batch,) int64, tokens in the target's cache.
        counts: (batch,) int64, newest tokens of each text that a drafter has not read, or held texts lack; at least 1.
        fresh: (batch, room) int64, these tokens, then any of the vocabulary.
        text_bits: (batch, room, words), what tokens of a text see of each other, as a `TreeMask` has it.
    """

    def __init__(self, batch: int, room: int, device: torch.device) -> None:
        """Have room for that many unread tokens of each sequence; hold nothing yet."""
        self.numbers = torch.zeros(batch * (2 + room), dtype=torch.int64, device=device)
        self.starts, self.counts = self.numbers[:batch], self.numbers[batch : 2 * batch]
        self.fresh = self.numbers[2 * batch :].view(batch, room)
        self._staged, self._sent = host_memory(self.numbers).zero_(), Moment(device)  # what the host says, on its way
        self.is_live = torch.ones((), dtype=torch.bool, device=device)
        self._places = torch.arange(room, device=device)
        self.text_bits = tree_bits((self._places.unsqueeze(1) >= self._places).expand(batch, room, room))

    @property
    def newest(self) -> Tensor:
        """The last token of each text, (batch, 1); no cache holds it."""
        return self.fresh if self.fresh.shape[1] == 1 else self.fresh.gather(1, (self.counts - 1).unsqueeze(1))

    def put(self, starts: Many[int], fresh: Many[Many[int]]) -> None:
        """Let a run begin where the host says; the host waits for nothing."""
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
        """Go on behind what a round emitted; part of the captured work.

        Args:
            starts: (batch,), tokens that were in the target's cache when it began.
            counts: (batch,), tokens emitted, at least 1.
            drawn: (batch, room), these tokens, then any of the vocabulary.
        """
        after = torch.cat((starts + counts, counts, drawn.flatten()))
        torch.where(self.is_live, after, self.numbers, out=self.numbers)

    def reading(self, vocabulary: int, seen: int) -> ForwardInput:
        """Return the forward by which a drafter reads what it has not; part of the captured work.

        Args:
            vocabulary: the drafter's; what is beyond it is read as its last token.
            seen: cache positions in sight.
        """
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
        """Emit what is best behind one token of each row, and go on; part of the captured work of a plain round.

        Args:
            logits: (batch, vocabulary).
            record: (batch, any), of which the last two columns are written; see the kernel.
            noise: that is added before.
        """
        go_on_behind(logits, self.numbers, self.is_live, record, noise)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let work that is recorded, and run for that a few times, leave everything as it is."""
        self.is_live.fill_(False)
        try:
            yield
        finally:
            self.is_live.fill_(True)
