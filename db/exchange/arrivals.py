"""Plans that a merge brings, and which of their events may decide here which plan counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from operator import attrgetter

from sqlalchemy.orm import Session

from ..sql.tables import PlanEventTable
from .records import SharedEvent, SharedPlan

IMPORTED = "imported"  # who retires plans that were older than what was here


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happened:
    plan_id: int
    event: SharedEvent
    moment: str  # of the event, or of a later one that came before it: a clock may have been set back


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrival:
    created: str
    newest: str | None  # when the newest plan of the setup was kept; None where the setup itself is new here
    history: list[_Happened] = field(default_factory=list)  # by moment


class Arrivals:
    """Plans that are new by one merge, and what happened to them according to every file that names them."""

    def __init__(self) -> None:
        self._arrivals: dict[int, _Arrival] = {}
        self._new_setups: set[tuple[object, ...]] = set()

    def add_plan(self, plan_id: int, plan: SharedPlan, newest: str | None) -> None:
        """Add a plan with its events; `newest` is when the newest plan here of its setup was stored, or None."""
        setup = (plan.device, plan.target, plan.workload, round(plan.temperature, 9))
        if newest is None:
            self._new_setups.add(setup)
        self._arrivals[plan_id] = _Arrival(created=plan.created, newest=None if setup in self._new_setups else newest)
        self.add_events(plan_id, plan.events)

    def add_events(self, plan_id: int, events: Sequence[SharedEvent]) -> None:
        """Add what else happened to a plan, oldest first; nothing where the plan was here before the merge."""
        if plan_id not in self._arrivals:
            return
        history = self._arrivals[plan_id].history
        known = Counter(happened.event for happened in history)
        for event, moment in zip(events, accumulate((event.created for event in events), max), strict=True):
            if known[event]:
                known[event] -= 1
            else:
                history.append(_Happened(plan_id=plan_id, event=event, moment=moment))
        history.sort(key=attrgetter("moment"))

    def settle(self, session: Session) -> list[str]:
        """Write the events that may decide here, in the order in which they happened, and return what is left out.

        These are all of new setups. In others a plan may only come in retired: it was so there, or is older than those
        here.
        """
        events: list[_Happened] = []
        left_out = []
        for plan_id, arrival in self._arrivals.items():
            if arrival.newest is None:
                events += arrival.history
            elif arrival.history and arrival.history[-1].event.action == "retired":
                events.append(arrival.history[-1])
            elif arrival.created < arrival.newest:
                reason = f"kept on {arrival.created}, and a plan of {arrival.newest} was here"
                session.add(PlanEventTable(plan_id=plan_id, action="retired", by=IMPORTED, reason=reason))
                left_out.append(f"plan {plan_id} is in, but retired: {reason}")
        for happened in sorted(events, key=attrgetter("moment")):
            session.add(PlanEventTable(plan_id=happened.plan_id, **asdict(happened.event)))
        session.flush()
        return left_out
