"""Plans that were read lately, parsed: a climb looks at one plan of every near device, each time at the same ones."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from threading import Lock

from ..planner.plan import Plan, plan_from_json


class ParsedPlans:
    """Parsed plans by the hash of their text, as many as their texts may take; safe to share between threads."""

    def __init__(self, most_bytes: int) -> None:
        """Take how many bytes the texts of the plans may have together."""
        self._most_bytes = most_bytes
        self._plans: OrderedDict[bytes, tuple[Plan, int]] = OrderedDict()  # with the length of its text
        self._bytes = 0
        self._lock = Lock()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the texts of the plans in memory."""
        return self._bytes

    def parse(self, text: str) -> Plan:
        """Return the plan of a text.

        Raises:
            PlanError: it is none.
        """
        key = hashlib.sha256(text.encode()).digest()
        with self._lock:
            if (kept := self._plans.get(key)) is not None:
                self._plans.move_to_end(key)
                return kept[0]
        plan = plan_from_json(text)
        with self._lock:
            if key not in self._plans:
                self._plans[key] = plan, len(text)
                self._bytes += len(text)
            while self._bytes > self._most_bytes and self._plans:
                _, (_, size) = self._plans.popitem(last=False)
                self._bytes -= size
        return plan
