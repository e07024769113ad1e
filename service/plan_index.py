"""What decoders ask for most, in memory: which plans there are, which of them count, and for which devices.

Rows are only ever added, so highest numbers and counts tell what is new. Where they do not fit what is known (plans
were pruned, or a transaction became visible late under a low number) all is read again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ..db.rows import PlanRow
from ..db.sql.news import Known, StateChange, news_of
from ..db.sql.sql_store import SqlStore
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from .remembered import Remembered

Place = tuple[str, str]  # ("device", its fingerprint), ("kind", its kind_key) or ANY
ANY: Place = ("any", "")
NO_EVENT = (0, "")


class PlanIndex(Remembered):
    """The plans of a store by target and place, and its devices and models; each reader refreshes it."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__()
        self._store, self._known = store, Known()
        self._rows: dict[tuple[str, Place], dict[int, PlanRow]] = defaultdict(dict)  # by target, place and id
        self.plans: dict[int, PlanRow] = {}  # by id
        self._states: dict[int, tuple[int, str]] = {}  # by plan: its last event and what that was
        self.devices: dict[str, Device] = {}  # by fingerprint
        self.models: dict[str, ModelIdentity] = {}  # by key
        self._changes: Counter[tuple[str, Place]] = Counter()  # how often the plans of a target at a place have changed

    def _look(self) -> None:
        news = news_of(self._store, self._known)
        if news.devices is not None:
            self.devices = {device.fingerprint: device for device in news.devices}
        if news.models is not None:
            self.models = {model.key: model for model in news.models}
        if news.is_all_plans:
            self._count(self.plans.values())
            self._rows.clear()
            self.plans.clear()
        self._take_plans(news.plans)
        if news.is_all_events:
            self._states.clear()
        self._take_events(news.events)
        self._known = news.known

    def changes(self, target: str, places: Sequence[Place]) -> int:
        """Return a number that grows whenever the plans of a target at one of these places change."""
        return sum(self._changes[target, place] for place in places)

    def counting(self, target: str, places: Sequence[Place]) -> Sequence[PlanRow]:
        """Return a target's plans at these places (device, kind or ANY), without retired ones, what counts most last.

        Promoted ones count more than others, the one promoted last the most; of the others the newest.
        """
        with self._lock:
            found: dict[int, PlanRow] = {}
            for place in places:
                found.update(self._rows.get((target, place), {}))  # asking for what is not there must take no memory
            return sorted(
                (row for row in found.values() if self._states.get(row.id, NO_EVENT)[1] != "retired"), key=self._weight
            )

    def _weight(self, row: PlanRow) -> tuple[int, int]:
        event, action = self._states.get(row.id, NO_EVENT)
        return (event if action == "promoted" else 0, row.id)

    def _take_plans(self, rows: Sequence[PlanRow]) -> None:
        for row in rows:
            self.plans[row.id] = row
            for place in _places(row):
                self._rows[row.target, place][row.id] = row
        self._count(rows)

    def _take_events(self, events: Sequence[StateChange]) -> None:
        for event in events:
            self._states[event.plan_id] = (event.id, event.action)
        self._count(self.plans[event.plan_id] for event in events if event.plan_id in self.plans)

    def _count(self, changed: Iterable[PlanRow]) -> None:
        self._changes.update({(row.target, place) for row in changed for place in _places(row)})


def _places(row: PlanRow) -> tuple[Place, ...]:
    return ("device", row.device), ("kind", row.device_kind), ANY
