"""How long a device waits for a server that is silent, refuses for now, or is busy."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .messages import FromServer, Refused

MOST_SILENT = 8  # silences that a device bears, before it gives up or goes on alone; refusals for now, for as long
MOST_BUSY_S = 600.0  # for which it bears a server that answers pings alone
PAUSE_S = 0.2  # before a server is asked again that has said that it cannot right now


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a device waits.

    `timeout_s` is for one answer, before it sends again with what it has drafted meanwhile; `fallback` the tokens it
    emits alone after a long silence, 0 to give up instead.
    """

    timeout_s: float = 2.0
    fallback: int = 0


class Tries:
    """The tries left for one message: only silences count, not a server that says when to retry."""

    def __init__(self, patience: RetryPolicy) -> None:
        self.left = MOST_SILENT
        self._timeout_s, self._begun_s = patience.timeout_s, time.monotonic()

    def settled(self, message: FromServer | None, *, is_there: bool) -> FromServer | None:
        """Return the message; None where to try again, after any pause that the server requests."""
        if message is None and not is_there:
            self.left -= 1
        elif message is None:
            self._bear(MOST_BUSY_S)
        elif not isinstance(message, Refused) or not message.is_passing:
            return message
        elif self._bear(MOST_SILENT * self._timeout_s):  # no other answer comes
            time.sleep(min(PAUSE_S, self._timeout_s))
        return None

    def _bear(self, most_s: float) -> bool:
        """Give up once all tries took `most_s`; return whether tries are left."""
        if time.monotonic() >= self._begun_s + most_s:
            self.left = 0
        return self.left > 0
