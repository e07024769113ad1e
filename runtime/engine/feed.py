"""Requests on their way through a decoder: each joins the batch when a slot is free."""

from __future__ import annotations

from collections.abc import Sequence as Many

from ..batch.sequence import Request, Sequence
from .engine import Decoder


class Feed:
    """Admits requests in order.

    `sequences[i]` is request i's; later requests wait. With `keeps_full` all are admitted again, with further indices,
    while any decodes for the first time: every slot stays busy until then.
    """

    def __init__(self, decoder: Decoder, requests: Many[Request], *, keeps_full: bool = False) -> None:
        self.sequences: list[Sequence] = []
        self._decoder, self._requests, self._keeps_full = decoder, requests, keeps_full
        self._again = 0  # admitted anew

    @property
    def admitted(self) -> int:
        """Requests that have joined so far, repeats included."""
        return len(self.sequences) + self._again

    def refill(self) -> bool:
        """Let waiting requests join while there is room; return whether to continue."""
        while self._decoder.has_room and len(self.sequences) < len(self._requests):
            place = len(self.sequences)
            self.sequences.append(self._decoder.admit(self._requests[place], place))
        if not self._keeps_full:
            return bool(self._decoder.running)
        if all(sequence.is_finished for sequence in self.sequences):
            return False
        for _ in self._requests:  # their first token may end them
            if not self._decoder.has_room:
                break
            again = self._requests[self._again % len(self._requests)]
            self._decoder.admit(again, len(self._requests) + self._again)
            self._again += 1
        return True
