"""The plan for a device, found on the ladder as a decoder would, with its answer ready for the next request."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any, cast

from ..db.rows import PlanRow
from ..db.sql.sql_store import SqlStore
from ..db.store import Store
from ..db.wire import Resolving
from ..errors import NoPlanError, PlanError
from ..planner.plans.document import plan_from_json
from ..planner.plans.plan import Plan
from ..profiler.records.model import ModelIdentity
from ..runtime.device_match import Found, Wanted, find_plan
from .plan_index import ANY, Place, PlanIndex

ROOM_BYTES = 1000  # of an answer beside its body, in memory
MOST_PARSED = 1000  # plans
MOST_QUERIES = 50_000  # texts of queries that are remembered
LONGEST_QUERY = 500  # bytes, of one that is remembered
Key = tuple[str, str, str | None, float, str | None]


class ParsedPlans:
    """Plans with one cell each, by the hash of their text; as many as are wanted; safe to share between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._plans)

    def parse(self, text: str) -> Plan:
        """Return the plan of a text with one cell, a lossy one if any; PlanError for no plan or unlike cells."""
        key = hashlib.sha256(text.encode()).digest()
        with self._lock:
            if (kept := self._plans.get(key)) is not None:
                self._plans.move_to_end(key)
                return kept
        plan = _outline(plan_from_json(text))
        with self._lock:
            self._plans.setdefault(key, plan)
            while len(self._plans) > self._most:
                self._plans.popitem(last=False)
        return plan


def _outline(plan: Plan) -> Plan:
    plan.cell(1, 0)  # compares all cells
    cell = next((cell for cell in plan.cells if cell.names_lossy), plan.cells[0])
    return replace(plan, cells=(cell,))


class Question(Resolving):
    """What a plan is wanted for, and what distinguishes it."""

    @property
    def key(self) -> Key:
        """What distinguishes requests; the fingerprint covers whatever of a device matters."""
        return (self.device.fingerprint, self.target, self.workload, self.temperature, self.dtype)

    @property
    def circles(self) -> tuple[tuple[Place, ...], ...]:
        """Where plans are looked for: the device itself, then its kind too, then anywhere."""
        own, kind = ("device", self.device.fingerprint), ("kind", self.device.kind_key)
        return (own,), (own, kind), (ANY,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An answer, and the state of the plans that it was made from."""

    tag: bytes = b""  # ETag
    body: bytes = b""  # JSON
    absent: str | None = None  # the setup that there is no plan for: then that is the answer
    target: str
    places: tuple[Place, ...]  # whose plans alone it hangs on
    changes: int  # of these plans


class Resolver:
    """Answers from memory as long as the plans that decide stay as they are."""

    def __init__(self, store: SqlStore, index: PlanIndex, most_bytes: int) -> None:
        self._store, self._index, self._most_bytes = store, index, most_bytes
        self._answers: OrderedDict[Key, Ready] = OrderedDict()
        self._queries: dict[bytes, Key] = {}
        self._bytes = 0
        self._lock = Lock()
        self._parsed = ParsedPlans(MOST_PARSED)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the answers in memory."""
        return self._bytes

    def ready(self, query: bytes) -> Ready | None:
        """Return the answer to an earlier query, None where it is unknown, none, or no longer true."""
        key = self._queries.get(query)
        kept = None if key is None else self._kept(key)
        return kept if kept is not None and kept.absent is None else None

    def remember(self, query: bytes, asked: Question) -> None:
        """Remember the meaning of a query's text, unless it is longer than queries are."""
        if len(query) > LONGEST_QUERY:
            return
        with self._lock:
            if len(self._queries) >= MOST_QUERIES:
                self._queries.clear()
            self._queries[query] = asked.key

    def is_kept(self, asked: Question) -> bool:
        """Whether the answer, or that there is none, is in memory."""
        return self._kept(asked.key) is not None

    def answer(self, asked: Question) -> Ready:
        """Return the answer, from memory or found now; NoPlanError without one, PlanError where none can be used."""
        found = self._kept(asked.key)
        if found is None:
            made = (self._made(asked, places) for places in asked.circles)
            found = next(answer for answer in made if answer is not None)  # the widest circle always answers
            self._keep(asked.key, found)
        if found.absent is not None:
            raise NoPlanError(found.absent, self._store.url)
        return found

    def _made(self, asked: Question, places: tuple[Place, ...]) -> Ready | None:
        """Return the answer of plans at these places, None where they give none; at ANY that is an answer.

        Plans of the asked device or its kind are the highest rungs, where other devices' plans do not count. So their
        answer stays, whatever becomes of those.
        """
        changes = self._index.changes(asked.target, places)  # ahead of the rows: a change meanwhile counts
        rows = self._index.counting(asked.target, places)
        if not rows and ANY not in places:
            return None
        made: dict[str, Any] = {"target": asked.target, "places": places, "changes": changes}
        plans = _Plans(self._store, rows)
        try:
            wanted = Wanted(
                target=self._target(asked, rows),
                device=asked.device,
                workload=asked.workload,
                temperature=asked.temperature,
                dtype=asked.dtype,
            )
            found = find_plan(cast(Store, plans), wanted, self._parsed.parse)  # it reads plans and nothing else
        except NoPlanError as error:
            return Ready(absent=error.setup, **made) if ANY in places else None
        except PlanError:
            if ANY in places:
                raise  # perhaps one that could not be read just now: not to be remembered
            return None
        body = _body(found, plans.plan(found.plan_id))
        return Ready(tag=f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode(), body=body, **made)

    def _target(self, asked: Question, rows: Sequence[PlanRow]) -> ModelIdentity:
        """Return who the target is, as the store or a plan says; the ladder needs it for words only."""
        known = self._index.models.get(asked.target)
        if known is not None:
            return known
        if not rows:
            raise NoPlanError(f"target {asked.target}", self._store.url)
        return self._parsed.parse(self._store.plan(rows[-1].id)).target

    def _kept(self, key: Key) -> Ready | None:
        kept = self._answers.get(key)
        if kept is None or kept.changes != self._index.changes(kept.target, kept.places):
            return None
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
        return kept

    def _keep(self, key: Key, made: Ready) -> None:
        with self._lock:
            old = self._answers.pop(key, None)
            self._bytes -= 0 if old is None else len(old.body) + ROOM_BYTES
            self._answers[key] = made
            self._bytes += len(made.body) + ROOM_BYTES
            while self._bytes > self._most_bytes and self._answers:
                _, dropped = self._answers.popitem(last=False)
                self._bytes -= len(dropped.body) + ROOM_BYTES


class _Plans:
    def __init__(self, store: SqlStore, rows: Sequence[PlanRow]) -> None:
        self.url, self.plans = store.url, lambda: rows
        self.plan = lru_cache(maxsize=1)(store.plan)  # what is found is often what was read last


def _body(found: Found, plan: str) -> bytes:
    """Return the answer; the plan is in it as it was stored, so that its numbers stay what they are."""
    match = asdict(found.match)
    head = {"plan_id": found.plan_id, "rung": found.rung, "match": match, "passed": list(found.passed)}
    return f'{json.dumps(head)[:-1]}, "plan": {plan}}}'.encode()
