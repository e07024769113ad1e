"""A store at a planner service: the same methods as a database's, over HTTPS, with a bad network in mind."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from ..errors import StoreError
from .remote_journal import RemoteJournal
from .remote_plans import RemotePlans
from .remote_records import RemoteRecords
from .remote_spool import abandon_others, begun_spool
from .remote_url import ServiceUrl
from .wire import OpenedProfile, ProfileOpening


class RemoteStore(RemoteRecords, RemotePlans):
    """Everything a service remembers; open it with `open_store`, use it as a context manager.

    Every write is kept by the service once its call returns, and kept once however often the network made it try.
    Three things are kept on this machine: plans and lists of plans that were read, for when the service does not
    answer; observations that could not be delivered; and visits of open profiles. Safe to share between threads.
    """

    def __init__(
        self,
        url: ServiceUrl,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the service.

        Args:
            url: where it is, and the token for it.
            sleep: waits some seconds before another attempt.
            clock: seconds; tells when something is due.

        Raises:
            StoreError: it does not answer and was never asked before, refuses, or speaks another language.
        """
        super().__init__(url, sleep, clock)
        self._journals: WeakSet[RemoteJournal] = WeakSet()

    def open_profile(self, key: str, fresh: bool = False) -> RemoteJournal:
        """Return the newest unfinished profile of a key, or a new one where there is none.

        Args:
            key: at most 64 characters; equal for what one command may resume of another.
            fresh: abandon the unfinished ones first, with everything they hold.
        """
        opened = self._service.ask(OpenedProfile, "/v1/profiles", ProfileOpening(key=key, fresh=fresh))
        spool = begun_spool(self._folder / "profiles", key, opened)
        abandon_others(spool)
        journal = RemoteJournal(self._service, opened, spool, self._clock)
        self._journals.add(journal)
        return journal

    def close(self) -> None:
        """Send what open profiles still hold, where the service answers, and give up every connection."""
        if not self._transport.is_closed:
            for journal in list(self._journals):
                with suppress(StoreError):  # the local files keep what the service does not take
                    journal.deliver()
        super().close()
