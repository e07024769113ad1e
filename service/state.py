"""What all requests of one service share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, sleep, to_thread
from starlette.requests import Request

from ..db.access import Tokens
from ..db.jobs import Jobs
from ..db.receipts import Receipts
from ..db.sql_store import SqlStore
from ..db.uploads import Uploads
from .callers import Caller, Callers
from .metrics import Metrics
from .plan_index import PlanIndex
from .rate import Buckets
from .resolver import Resolver
from .settings import Settings

READERS, RESOLVERS, FRESHENERS, WRITERS = 5, 3, 2, 3  # threads; fewer than a store's 15 connections
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
    receipts: Receipts
    uploads: Uploads
    index: PlanIndex
    resolver: Resolver
    callers: Callers
    metrics: Metrics
    buckets: Buckets
    is_planning: Callable[[], bool]  # whether a worker for jobs lives, or none is wanted
    streams: int = 0  # jobs that are being watched
    is_stopping: bool = False
    _readers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, READERS))
    _resolvers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, RESOLVERS))
    _writers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, WRITERS))
    _large_writers: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    _fresheners: CapacityLimiter = field(default_factory=partial(CapacityLimiter, FRESHENERS))

    async def read(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do what reads the store, in a thread."""
        return await to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._readers)

    async def resolve(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do what a decoder waits for, in a thread that no list or page holds."""
        return await to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._resolvers)

    async def write_large(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Write what takes much memory, one at a time."""
        return await to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._large_writers)

    async def write(self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Do what writes to the store, in a thread; it is done to its end even where the client has gone."""
        return await to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._writers)

    async def freshen_callers(self) -> None:
        """Read the tokens anew; many who ask at once share one reading."""
        await sleep(self.callers.rest_s())
        await to_thread.run_sync(self.callers.refresh, limiter=self._fresheners)

    async def still_reads(self, token: str | None) -> bool:
        """Say whether what a token was let in for may go on."""
        if not self.callers.is_fresh(token):
            await self.freshen_callers()
        row = self.callers.row(token)
        return not self.callers.needs_token or (row is not None and row.allows("read"))

    async def freshen_index(self) -> None:
        """See to it that what is known of plans is not too old."""
        if not self.index.is_fresh(self.settings.fresh_s):
            await to_thread.run_sync(self.index.refresh, limiter=self._fresheners)


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
        receipts=Receipts(store),
        uploads=Uploads(store, settings.upload_bytes, settings.open_uploads),
        index=index,
        resolver=Resolver(store, index, settings.cache_bytes),
        callers=Callers(tokens, settings.auth, settings.fresh_s),
        metrics=Metrics(),
        buckets=Buckets(settings.rate_per_s, settings.burst),
        is_planning=is_planning,
        _writers=CapacityLimiter(writers),
    )
