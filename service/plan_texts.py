"""Plans that were read lately, parsed: a climb looks at one plan of every near device, each time at the same ones.

It needs their identity and soundness; cells go out as text. So each has one cell here: whole plans take ten times the
memory of their texts.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import replace
from threading import Lock

from ..planner.plans.document import plan_from_json
from ..planner.plans.plan import Plan


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
