"""What all requests of one service share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
from .rate import Buckets
from .remembered import Readiness
from .resolver import Resolver
from .settings import Settings

READERS, PAGES, RESOLVERS, FRESHENERS, WRITERS = 4, 2, 3, 2, 3  # threads; fewer than a store's 15 connections
MOST_WAITING = 200  # for threads of one kind: who comes later is told to come again, before all wait for ever
SQLITE_WRITERS = 1  # a thread that waits for another's turn here sleeps less than SQLite does

P = ParamSpec("P")
Result = TypeVar("Result")


@dataclass(slots=True, kw_only=True)
class Service:
    """One store as it is served."""

    store: SqlStore
    settings: Settings
    tokens: Tokens
    jobs: Jobs
    receipts: IdempotencyStore
    uploads: Uploads
    index: PlanIndex
    resolver: Resolver
    callers: Callers
    readiness: Readiness
    metrics: Metrics
    buckets: Buckets
    is_planning: Callable[[], bool]  # whether a worker for jobs lives, or none is wanted
    streams: int = 0  # jobs that are being watched
    is_stopping: bool = False
    _readers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, READERS))
    _pages: CapacityLimiter = field(default_factory=partial(CapacityLimiter, PAGES))
    _resolvers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, RESOLVERS))
    _writers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, WRITERS))
    _large_writers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    _fresheners: CapacityLimiter = field(default_factory=partial(CapacityLimiter, FRESHENERS))

    async def read(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do what reads the store, in a thread."""
        return await _in_turn(self._readers, partial(work, *args, **kwargs))

    async def show(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Make a page, in a thread: pages take long, and lists do not wait for them."""
        return await _in_turn(self._pages, partial(work, *args, **kwargs))

    async def resolve(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do what a decoder waits for, in a thread that no list or page holds."""
        return await _in_turn(self._resolvers, partial(work, *args, **kwargs))

    async def write_large(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Write what takes much memory, one at a time."""
        return await _in_turn(self._large_writers, partial(work, *args, **kwargs))

    async def write(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do what writes to the store, in a thread; it is done to its end even where the client has gone."""
        return await _in_turn(self._writers, partial(work, *args, **kwargs))

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

    async def freshen_index(self) -> None:
        """See to it that what is known of plans is not too old; many who ask at once share one reading."""
        if not self.index.is_fresh(self.settings.fresh_s):
            await to_thread.run_sync(self.index.refresh, monotonic(), limiter=self._fresheners)

    async def freshen_readiness(self) -> None:
        """See to it that what is known of the database is not too old; many who ask at once share one look at it."""
        if not self.readiness.is_fresh(self.settings.fresh_s):
            await to_thread.run_sync(self.readiness.refresh, monotonic(), limiter=self._fresheners)


async def _in_turn(limiter: CapacityLimiter, work: Callable[[], Result]) -> Result:
    """Do something in a thread; raise ProblemError (503) where too many wait for one already."""
    if limiter.statistics().tasks_waiting >= MOST_WAITING:
        raise ProblemError(
            503, "busy", f"{MOST_WAITING} requests are waiting; send this one again", {"Retry-After": "1"}
        )
    return await to_thread.run_sync(work, limiter=limiter)


def service_of(request: Request) -> Service:
    """Return the service that a request asks."""
    service: Service = request.app.state.service
    return service


def caller_of(request: Request) -> Caller:
    """Return who asks; the gate has let them in."""
    caller: Caller = request.state.caller
    return caller


def service_on(store: SqlStore, settings: Settings, is_planning: Callable[[], bool]) -> Service:
    """Return a service on an open store."""
    tokens, index = Tokens(store), PlanIndex(store)
    writers = WRITERS if store.is_server else SQLITE_WRITERS
    return Service(
        store=store,
        settings=settings,
        tokens=tokens,
        jobs=Jobs(store),
        receipts=IdempotencyStore(store),
        uploads=Uploads(store, settings.upload_bytes, settings.open_uploads),
        index=index,
        resolver=Resolver(store, index, settings.cache_bytes),
        callers=Callers(tokens, settings.auth, settings.fresh_s),
        readiness=Readiness(store),
        metrics=Metrics(),
        buckets=Buckets(settings.rate_per_s, settings.burst),
        is_planning=is_planning,
        _writers=CapacityLimiter(writers),
    )
