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
    """Everything a service stores; open it with `open_store`, use it as a context manager.

    Each write is stored once, and when its call returns. This machine keeps plans and their lists, for when the service
    is away, undelivered observations, and visits of open profiles. Threads may share it.
    """

    def __init__(
        self,
        url: ServiceUrl,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the service, or raise StoreError; `sleep` waits seconds before another attempt, `clock` tells them."""
        super().__init__(url, sleep, clock)
        self._journals: WeakSet[RemoteJournal] = WeakSet()

    def open_profile(self, key: str, fresh: bool = False) -> RemoteJournal:
        """Return a key's newest unfinished profile, or a new one, as `Profiles.open_profile`."""
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
