"""A profile whose journal is at a service: calls are written down here at once, and there in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from urllib.parse import quote
from uuid import uuid4

from ...errors import StoreError
from ...profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ...profiler.records.overhead import RoundOverhead
from ...profiler.records.surface import LatencySurface
from ...profiler.records.visit import Visit
from ..sql.profiles import SURFACES
from ..wire import Finish, OpenedProfile, Surfaces, Visits
from .service import CONFLICT, ServiceClient
from .spool import VisitSpool
from .transport import BRISK, ONCE, AwayError, ExponentialBackoff, RefusedError

BATCH_VISITS = 256
BATCH_S = 5.0  # between two batches while the service answers
LONGEST_PAUSE_S = 60.0  # between two attempts while it does not


class RemoteJournal:
    """What one open profile has done so far; a `profiler.protocols.Journal`.

    A visit outlives a killed process once `add_visit` returns: it is in a local file. It reaches the service within
    `BATCH_S` seconds or `BATCH_VISITS` visits, or as soon as the service answers again, between two timed calls and
    never beside one. All else is at the service once the call returns. After `finish`, or once another process
    abandoned the profile, writes are refused; where that process is on another machine, with the next batch. So is an
    ordinal or a name that is taken, or damaged: StoreError.
    """

    def __init__(
        self,
        service: ServiceClient,
        opened: OpenedProfile,
        spool: VisitSpool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Go on with an open profile from `RemoteStore.open_profile`; the clock tells when a batch is due."""
        self.profile_id = opened.profile_id
        self.is_resumed = opened.is_resumed
        self._service, self._spool, self._clock = service, spool, clock
        self._place = f"/v1/profiles/{opened.profile_id}"
        self._name = f"profile {opened.profile_id} in {service.url}"
        self._delivered: dict[int, Visit] = {}
        self._batch: tuple[Visits, str] | None = None  # one that was sent, and may be kept already, with its key
        self._unsent = len(spool.visits)
        self._pause_s = BATCH_S
        self._due_s = clock() + BATCH_S

    def visits(self) -> list[Visit]:
        self._spool.learn()
        self._reconcile()
        together = {**self._delivered, **self._spool.visits}
        return [together[ordinal] for ordinal in sorted(together)]

    def add_visit(self, visit: Visit) -> None:
        if not self._spool.is_open:
            raise self._closed()
        if visit.ordinal in self._delivered:
            raise self._taken(f"visit {visit.ordinal}")
        if not self._spool.add(visit):
            raise self._taken(f"visit {visit.ordinal}") if self._spool.state == "open" else self._closed()
        self._unsent += 1
        is_full = self._unsent >= BATCH_VISITS and self._pause_s == BATCH_S
        if is_full or self._clock() >= self._due_s:
            self._try_to_deliver(ONCE)

    def part(self, name: str) -> str | None:
        return self._service.text(self._part(name))

    def add_part(self, name: str, document: str) -> None:
        self._service.write_text(self._part(name), document)

    def finish_surfaces(self, surfaces: Sequence[LatencySurface]) -> None:
        self._service.write("POST", f"{self._place}/surfaces", Surfaces(surfaces=tuple(surfaces)))
        self._spool.mark_surfaces()
        self._delivered, self._batch = {}, None

    def finish(
        self,
        *,
        overhead: RoundOverhead | None = None,
        traces: Sequence[AcceptanceTrace] = (),
        pairwise: Sequence[PairwiseAcceptance] = (),
    ) -> None:
        """Store all but surfaces, mark the profile finished, drop its parts: all or nothing. StoreError if not open."""
        last = Finish(overhead=overhead, traces=tuple(traces), pairwise=tuple(pairwise))
        self._service.write("POST", f"{self._place}/finish", last)
        self._spool.close("finished")

    def deliver(self) -> None:
        """Send what the service does not have yet; where it does not answer, the local file keeps it."""
        if self._spool.is_open and self._waiting():
            self._try_to_deliver(BRISK)

    def _waiting(self) -> list[Visit]:
        return [visit for ordinal, visit in self._spool.visits.items() if ordinal not in self._delivered]

    def _try_to_deliver(self, patience: ExponentialBackoff) -> None:
        """Send batches until none is left; while the service does not answer, the pauses between attempts grow."""
        try:
            while self._deliver_batch(patience):
                pass
            self._pause_s = BATCH_S
        except AwayError:
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        self._unsent = len(self._waiting())
        self._due_s = self._clock() + self._pause_s

    def _deliver_batch(self, patience: ExponentialBackoff) -> bool:
        """Send one batch, under one key until it is answered; False where nothing is left."""
        if self._batch is None:
            waiting = self._waiting()[: 4 * BATCH_VISITS]
            if not waiting:
                return False
            self._batch = Visits(visits=tuple(waiting)), str(uuid4())
        batch, key = self._batch
        try:
            self._service.write("POST", f"{self._place}/visits", batch, key=key, patience=patience)
        except RefusedError as error:
            self._batch = None
            if error.status != CONFLICT or not self._is_reconciled(batch):
                raise
        else:
            self._delivered.update({visit.ordinal: visit for visit in batch.visits})
            self._batch = None
        return True

    def _is_reconciled(self, batch: Visits) -> bool:
        """Look which of a refused batch the service has; False where it has none, so that others are not the cause."""
        self._reconcile()
        return any(visit.ordinal in self._delivered for visit in batch.visits)

    def _reconcile(self) -> None:
        """Learn what the service has; raise StoreError where an ordinal of ours has another visit there."""
        kept = {visit.ordinal: visit for visit in self._service.all(Visit, f"{self._place}/visits")}
        ours = self._spool.visits
        if not kept.keys() >= ours.keys() and self._is_done_with(ours):
            self._spool.mark_surfaces()  # this process was killed between the service's word and its own note
        for ordinal in kept.keys() & self._spool.visits.keys():
            if kept[ordinal] != self._spool.visits[ordinal]:
                raise self._taken(f"visit {ordinal}")
        self._delivered = kept

    def _is_done_with(self, visits: dict[int, Visit]) -> bool:
        return bool(visits) and not self._spool.has_surfaces and self.part(SURFACES) is not None

    def _part(self, name: str) -> str:
        return f"{self._place}/parts/{quote(name, safe='')}"

    def _closed(self) -> StoreError:
        return StoreError(f"{self._name} is {self._spool.state} and takes nothing more; start the command again")

    def _taken(self, what: str) -> StoreError:
        return StoreError(
            f"{what} of {self._name} is already there: another process runs the same profile; "
            "wait for it to end or stop it, then start the command again, with --fresh where that does not help"
        )
