"""Where everything is remembered: `open_store(url)` gives a `Store`."""

from __future__ import annotations

from .plans import PlanRow
from .store import Store, open_store
from .traces import TraceRow

__all__ = ["PlanRow", "Store", "TraceRow", "open_store"]
