"""A store at a planner service: the same methods as a database's, over HTTPS, with a bad network in mind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from ...errors import NoPlanError, PlanError, StoreError
from ...profiler.records.device import Device
from ...profiler.records.model import ModelIdentity
from ...profiler.records.surface import LatencySurface
from ...profiler.records.wire import to_json
from ..endpoint import Arguments, Endpoint
from ..rows import PlanRow
from ..store import Store, no_plan
from ..url import ServiceUrl
from ..wire import (
    MOST_ITEMS,
    TOO_MANY_TIMINGS,
    Document,
    OpenedProfile,
    Page,
    ProfileOpening,
    Resolved,
    Resolving,
    ServiceInfo,
)
from .cache import AnswerCache, CachedReader, service_folder
from .journal import RemoteJournal
from .observations import OF_THE_DOCUMENT, ObservationQueue, Waiting
from .service import ABSENT, CONFLICT, Params, ServiceClient, require_spoken
from .spool import abandon_others, begun_spool
from .transport import BRISK, OPENING, AwayError, RefusedError, Transport


class RemoteStore(Store):
    """Everything a service stores; open it with `open_store`, use it as a context manager.

    Each write is stored once, and when its call returns. This machine keeps plans and their lists, for when the service
    is away, undelivered observations, and visits of open profiles. Threads may share it.
    """

    def __init__(
        self, url: ServiceUrl, sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Ask the service who it is, or take its last answer; `sleep` waits seconds, `clock` tells them.

        AwayError: no answer, now or kept. StoreError: it refuses, is no planner service, or speaks another language.
        """
        self._folder = service_folder(url)
        self._transport = Transport(url, sleep)
        self._service = ServiceClient(self._transport)
        self._reader = CachedReader(self._service, AnswerCache(self._folder / "answers"), clock)
        self._clock = clock
        self._queue = ObservationQueue(self._folder / "observations")
        self._journals: WeakSet[RemoteJournal] = WeakSet()
        try:
            require_spoken(self._reader.get(ServiceInfo, "/v1", patience=OPENING), self.url)
        except BaseException:
            self._transport.close()
            raise

    @property
    def url(self) -> str:
        return self._service.url

    @property
    def note(self) -> str:
        return self._reader.note

    def close(self) -> None:
        if not self._transport.is_closed:
            for journal in list(self._journals):
                with suppress(StoreError):  # the local files keep what the service does not take
                    journal.deliver()
        self._transport.close()

    def _call(self, endpoint: Endpoint, arguments: Arguments) -> Any:  # Any: what the method returns
        kind = endpoint.gives or endpoint.returns
        if endpoint.verb != "GET":
            sent = endpoint.record(arguments)
            answer = self._service.write(endpoint.verb, endpoint.place(arguments, sent), sent)
            if endpoint.returns is None:
                return None
            told: Any = self._service.read(kind, answer.body)
            return told.id if endpoint.returns is int else told
        path, get = endpoint.place(arguments), self._reader.get if endpoint.is_cached else self._service.get
        asked = endpoint.query(arguments)
        if endpoint.is_list:
            limit, after = asked.pop("limit", None), asked.pop("after", None)
            found = self._service.all(kind, path, asked, limit, after, get=get)
            return [each.document for each in found] if kind is Document else found
        if endpoint.is_optional:
            return self._service.find(kind, path, asked)
        return self._reader.text(path) if kind is str else get(kind, path, asked)

    def find_model(self, key: str) -> ModelIdentity | None:
        return super().find_model(key) if key else None

    def surfaces(
        self, device: str | None = None, model: str | None = None, dtype: str | None = None, **further: str | None
    ) -> list[LatencySurface]:
        """Return surfaces together, or one by one where they are too much for one answer."""
        try:
            return super().surfaces(device, model, dtype, **further)
        except RefusedError as error:
            if not error.kind.endswith(TOO_MANY_TIMINGS):
                raise
        wanted = {"device": device, "model": model, "dtype": dtype, **further}
        keys = [asdict(row.key) for row in self.surface_rows(device=device)]
        meant = [key for key in keys if all(value in (None, key[name]) for name, value in wanted.items())]
        return [surface for key in meant for surface in super(RemoteStore, self).surfaces(**key)]

    def open_profile(self, key: str, fresh: bool = False) -> RemoteJournal:
        opened = self._service.ask(OpenedProfile, "/v1/profiles", ProfileOpening(key=key, fresh=fresh))
        spool = begun_spool(self._folder / "profiles", key, opened)
        abandon_others(spool)
        journal = RemoteJournal(self._service, opened, spool, self._clock)
        self._journals.add(journal)
        return journal

    def find_plan(self, **setup: Any) -> PlanRow:
        missing = no_plan(self.url, **setup)
        try:
            return super().find_plan(**setup)
        except RefusedError as error:
            raise missing if error.status == ABSENT else error from None

    def resolve(
        self, device: Device, target: str, workload: str | None, temperature: float, dtype: str | None = None
    ) -> Resolved:
        wanted = Resolving(device=device, target=target, workload=workload, temperature=float(temperature), dtype=dtype)
        try:
            return self._reader.ask("/v1/resolve", to_json(wanted), self._resolved)
        except RefusedError as error:
            if error.status == ABSENT:
                words = "any workload" if workload is None else f"workload {workload!r}"
                setup = f"target {target} on {device.label}, {words}, temperature {temperature:g}"
                raise NoPlanError(setup, self.url) from error
            raise PlanError(str(error)) if error.status == CONFLICT else error from error

    def add_observation(self, plan_id: int, document: str) -> None:
        """Store what a decoder saw while it ran a plan: at the service, or here until it answers.

        Waiting ones go first, oldest first, some with every call; while any is left, or the service refuses this
        client, this one waits too. StoreError: there is no such plan, or neither service nor disk takes the document.
        """
        waiting = Waiting(plan_id=plan_id, document=document, key=str(uuid4()))
        try:
            if self._reader.is_away:
                raise AwayError(f"{self.url} did not answer a moment ago")
            if self._queue.deliver(self._observe):
                self._observe(waiting)
            else:
                self._queue.add(waiting)
        except AwayError as error:
            self._reader.went_away(error)
            self._queue.add(waiting)
        except RefusedError as error:
            if error.status in OF_THE_DOCUMENT:
                raise
            self._queue.add(waiting)  # who sends it is refused, or the service is in trouble

    def newest_observations(self, plan_id: int, limit: int) -> list[str]:
        if limit > MOST_ITEMS:
            return self.observations(plan_id)[-limit:]
        asked: Params = {"newest": True, "limit": limit}
        page = self._service.get(Page[Document], f"/v1/plans/{plan_id:d}/observations", asked)
        return [each.document for each in page.items]

    def _observe(self, waiting: Waiting) -> None:
        place = f"/v1/plans/{waiting.plan_id:d}/observations"
        self._service.write("POST", place, Document(document=waiting.document), key=waiting.key, patience=BRISK)

    def _resolved(self, body: str) -> Resolved:
        """Return an answer whose plan is a JSON value as a record whose plan is a text; numbers stay what they are."""
        try:
            answer = json.loads(body)
            answer["plan"] = json.dumps(answer["plan"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(f"{self.url} answered with something that holds no plan; see its log") from error
        return self._service.read(Resolved, json.dumps(answer).encode())
