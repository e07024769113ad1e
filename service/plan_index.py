"""What decoders ask for most, in memory: which plans there are, which of them count, and for which devices.

Rows of the store are only ever added, so highest numbers and counts tell whether anything is new. Where they do not
agree with what is known (plans were pruned, or a transaction became visible late under a low number) all is read anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import Lock
from time import monotonic

from ..db.news import Newest, events_after, newest, plans_after
from ..db.plans import PlanRow
from ..db.sql_store import SqlStore
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from .setback import Setback


class PlanIndex:
    """The plans of a store by target, and its devices and models; refreshed by whoever reads it."""

    def __init__(self, store: SqlStore) -> None:
        """Take the store; nothing is read yet."""
        self._store, self._lock, self._setback = store, Lock(), Setback()
        self._seen = Newest()
        self._read_at = float("-inf")
        self._rows: dict[tuple[str, str | None], dict[int, PlanRow]] = defaultdict(dict)  # by place and id
        self._plans: dict[int, PlanRow] = {}
        self._states: dict[int, tuple[int, str]] = {}  # by plan: its last event and what that was
        self._devices: dict[str, Device] = {}
        self._models: dict[str, ModelIdentity] = {}
        self._events = 0
        self._changes: Counter[tuple[str, str | None]] = Counter()  # by place: how often its plans have changed

    @property
    def plans(self) -> int:
        """How many plans are known."""
        return len(self._plans)

    def is_fresh(self, fresh_s: float) -> bool:
        """Whether the store was looked at within these seconds."""
        return monotonic() - self._read_at <= fresh_s

    def refresh(self) -> None:
        """Look for what is new in the store, unless another thread has begun to after this call.

        Raises:
            StoreError: the store is away.
        """
        asked = monotonic()
        with self._lock, self._setback:
            if self._read_at >= asked:
                return
            began, now = monotonic(), newest(self._store)
            if now.device != self._seen.device:
                self._devices = {device.fingerprint: device for device in self._store.devices()}
            if now.model != self._seen.model:
                self._models = {model.key: model for model in self._store.models()}
            if (now.plan, now.plans) != (self._seen.plan, self._seen.plans):
                self._take_plans(now)
            if (now.event, now.events) != (self._seen.event, self._seen.events):
                self._take_events(now)
            self._seen = replace(now, plans=len(self._plans), events=self._events)
            self._read_at = began

    def device(self, fingerprint: str) -> Device | None:
        """Return a device of the store, None where it does not know it."""
        return self._devices.get(fingerprint)

    def model(self, key: str) -> ModelIdentity | None:
        """Return a model of the store, None where it does not know it."""
        return self._models.get(key)

    def changes(self, target: str, device: str | None = None) -> int:
        """Return a number that grows whenever the plans of a target change, or only those of one device."""
        return self._changes[target, device]

    def counting(self, target: str, device: str | None = None) -> Sequence[PlanRow]:
        """Return the plans of a target that are not retired: the one that counts most last.

        Promoted ones count more than others, the one promoted last the most; of the others the newest.

        Args:
            target: ModelIdentity.key.
            device: only those of this Device.fingerprint; of any where None.
        """
        with self._lock:
            known = self._rows.get((target, device), {})  # asking for what is not there must take no memory
            return sorted((row for row in known.values() if self._state(row.id) != "retired"), key=self._weight)

    def _state(self, plan_id: int) -> str:
        return self._states.get(plan_id, (0, ""))[1]

    def _weight(self, row: PlanRow) -> tuple[int, int]:
        event, action = self._states.get(row.id, (0, ""))
        return (event if action == "promoted" else 0, row.id)

    def _take_plans(self, now: Newest) -> None:
        new = [row for row in plans_after(self._store, self._seen.plan) if row.id not in self._plans]
        if len(self._plans) + len(new) != now.plans:
            new = list(plans_after(self._store, 0))
            self._count(self._plans.values())
            self._rows.clear()
            self._plans.clear()
        for row in new:
            self._plans[row.id] = row
            for place in _places(row):
                self._rows[place][row.id] = row
        self._count(new)

    def _take_events(self, now: Newest) -> None:
        new = events_after(self._store, self._seen.event)
        if self._events + len(new) != now.events:
            new = events_after(self._store, 0)
            self._states.clear()
            self._events = 0
        for event in new:
            self._states[event.plan_id] = (event.id, event.action)
        self._events += len(new)
        self._count(self._plans[event.plan_id] for event in new if event.plan_id in self._plans)

    def _count(self, changed: Iterable[PlanRow]) -> None:
        self._changes.update({place for row in changed for place in _places(row)})


def _places(row: PlanRow) -> tuple[tuple[str, str | None], ...]:
    """Return where a plan is looked for: among those of its target on any device, and on its own."""
    return (row.target, None), (row.target, row.device)
