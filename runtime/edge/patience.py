"""How long a device waits for a server that is silent, refuses for now, or has too much to do."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .messages import FromServer, Refused

MOST_SILENT = 8  # silences that a device bears, before it gives up or goes on alone; refusals for now, for as long
MOST_BUSY_S = 600.0  # for which it bears a server that answers pings alone
PAUSE_S = 0.2  # before a server is asked again that has said that it cannot right now


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a device waits.

    Attributes:
        timeout_s: for one answer, before it asks again, with what it has drafted meanwhile.
        fallback: tokens that it says by itself when the server has been silent for long; 0: it gives up instead.
    """

    timeout_s: float = 2.0
    fallback: int = 0


class Tries:
    """How often one thing may still be asked in vain.

    Only silences are counted. A server that asks for patience is there: it is asked again for as long as they take. So
    is one that answers a ping, if nothing else yet: it is waited for longer.
    """

    def __init__(self, patience: Patience) -> None:
        """Begin to ask."""
        self.left = MOST_SILENT
        self._timeout_s, self._begun_s = patience.timeout_s, time.monotonic()

    def settled(self, message: FromServer | None, *, is_there: bool) -> FromServer | None:
        """Return what was heard; None where it is to be asked again, behind a pause where the server asks for one.

        Args:
            message: what was heard last, None for nothing.
            is_there: whether the server has told, since it was asked, that it is there.
        """
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
        """Give up where all tries together took so long; return whether they did not."""
        if time.monotonic() >= self._begun_s + most_s:
            self.left = 0
        return self.left > 0
