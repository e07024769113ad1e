"""Where everything is remembered: `open_store(url)` gives a `Store`."""

from __future__ import annotations

from .opening import open_store
from .rows import PlanRow, TraceRow
from .sql.profiles import ProfileJournal
from .store import OpenProfile, Store

__all__ = ["OpenProfile", "PlanRow", "ProfileJournal", "Store", "TraceRow", "open_store"]
