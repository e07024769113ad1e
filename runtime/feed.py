"""Requests on their way through a decoder: each joins the batch when a slot is free."""

from __future__ import annotations

from collections.abc import Sequence as Many

from .decoder import Decoder
from .requests import Request, Sequence


class Feed:
    """Admits requests in order.

    Invariant: `sequences[i]` is what request i has become; those beyond wait.
    """

    def __init__(self, decoder: Decoder, requests: Many[Request]) -> None:
        """Take a decoder and what it is to decode."""
        self.sequences: list[Sequence] = []
        self._decoder, self._requests = decoder, requests

    def refill(self) -> bool:
        """Let waiting requests join while there is room; return whether anything runs."""
        while self._decoder.has_room and len(self.sequences) < len(self._requests):
            place = len(self.sequences)
            self.sequences.append(self._decoder.admit(self._requests[place], place))
        return bool(self._decoder.running)
