"""What all requests of one service share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, sleep, to_thread
from starlette.requests import Request

from ..db.jobs.access import Tokens
from ..db.jobs.jobs import Jobs
from ..db.jobs.receipts import IdempotencyStore
from ..db.jobs.uploads import Uploads
from ..db.sql.sql_store import SqlStore
from .callers import Caller, Callers
from .metrics import Metrics
from .plan_index import PlanIndex
from .problem import ProblemError
from .remembered import Readiness, Remembered
from .resolver import Resolver
from .settings import ServiceSettings

READERS, PAGES, RESOLVERS, FRESHENERS, WRITERS = 4, 2, 3, 2, 3  # threads; fewer than a store's 15 connections
MOST_WAITING = 200  # for threads of one kind: who comes later is told to come again, before all wait for ever
SQLITE_WRITERS = 1  # a thread that waits for another's turn here sleeps less than SQLite does

P = ParamSpec("P")
Result = TypeVar("Result")


class Turns:
    """Threads of one kind, for which what is to be done waits in turn."""

    def __init__(self, threads: int) -> None:
        self._limiter = CapacityLimiter(threads)

    async def __call__(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do something in a thread; raise ProblemError (503) where too many wait for one already."""
        if self._limiter.statistics().tasks_waiting >= MOST_WAITING:
            told = f"{MOST_WAITING} requests are waiting; send this one again"
            raise ProblemError(503, "busy", told, {"Retry-After": "1"})
        return await to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._limiter)


class Service:
    """One store as it is served; what is written is done to its end even where the client has gone."""

    def __init__(self, store: SqlStore, settings: ServiceSettings, is_planning: Callable[[], bool]) -> None:
        """Take an open store, what is allowed, and whether a worker for jobs lives, or none is wanted."""
        self.store, self.settings, self.is_planning = store, settings, is_planning
        self.jobs, self.receipts = Jobs(store), IdempotencyStore(store)
        self.uploads = Uploads(store, settings.upload_bytes, settings.open_uploads)
        self.index = PlanIndex(store)
        self.resolver = Resolver(store, self.index, settings.cache_bytes)
        self.callers = Callers(Tokens(store), settings.auth, settings.fresh_s)
        self.readiness = Readiness(store)
        self.metrics, self.buckets = Metrics(), Buckets(settings.rate_per_s, settings.burst)
        self.streams = 0  # jobs that are being watched
        self.is_stopping = False
        self.read, self.resolve = Turns(READERS), Turns(RESOLVERS)  # lists; what a decoder waits for
        self.show = Turns(PAGES)  # which take long, and lists do not wait for them
        self.write = Turns(WRITERS if store.is_server else SQLITE_WRITERS)
        self.write_large = Turns(1)  # what takes much memory
        self._fresheners = CapacityLimiter(FRESHENERS)

    async def freshen_callers(self) -> None:
        """Read the tokens again; requests at the same time share one reading."""
        asked = monotonic()
        await sleep(self.callers.rest_s())
        await to_thread.run_sync(self.callers.refresh, asked, limiter=self._fresheners)

    async def still_reads(self, token: str | None) -> bool:
        """Say whether what a token was let in for may go on."""
        if not self.callers.knows(token):
            await self.freshen_callers()
        row = self.callers.row(token)
        return not self.callers.needs_token or (row is not None and row.allows("read"))

    def stop_streams(self) -> None:
        """Let those who follow jobs go: the service ends."""
        self.is_stopping = True

    async def freshen(self, known: Remembered) -> None:
        """See to it that what is known of the store is not too old; many who ask at once share one reading."""
        if not known.is_fresh(self.settings.fresh_s):
            await to_thread.run_sync(known.refresh, monotonic(), limiter=self._fresheners)


def service_of(request: Request) -> Service:
    """Return the service of a request."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    """Return the caller; the gate has let them in."""
    caller: Caller = request.state.caller
    return caller


MOST_CALLERS = 10_000  # remembered; a forgotten one begins with a full bucket


class Buckets:
    """One bucket for every caller."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        """Take how fast buckets fill and how much they hold; a rate of 0 is no limit."""
        self._rate, self._burst = rate_per_s, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and when

    def wait_s(self, caller: str, now: float) -> float:
        """Take one request of a caller; return 0, or the seconds until its next one. `now` is of a monotonic clock."""
        if not self._rate:
            return 0.0
        left, then = self._buckets.pop(caller, (self._burst, now))
        left = min(left + self._rate * (now - then), self._burst)
        is_allowed = left >= 1.0
        self._buckets[caller] = (left - 1.0 if is_allowed else left, now)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1.0 - left) / self._rate
