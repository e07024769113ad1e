"""Where everything is remembered: `open_store(url)` gives a `Store`."""

from __future__ import annotations

from .plans import PlanRow
from .profiles import ProfileJournal
from .store import OpenProfile, Store, open_store
from .traces import TraceRow

__all__ = ["OpenProfile", "PlanRow", "ProfileJournal", "Store", "TraceRow", "open_store"]
