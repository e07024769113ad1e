"""On which workload's texts rounds were timed: a search for n-grams drafts, and costs, what the texts let it."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from ...runtime.device_match import FIRST_WORKLOAD

MARK = "@"  # between a regime and a workload
LONGEST = 40  # characters of a workload's name


def regime_on(regime: str, workload: str) -> str:
    """Return an engine's regime with the workload behind it; as it is for the one meant where none is named."""
    name = _written(workload)
    return f"{regime}{MARK}{name}" if name else regime


def is_timed_on(workload: str, regime: str) -> bool:
    """Say whether rounds of a regime were timed on a workload's texts."""
    return regime.partition(MARK)[2] == _written(workload)


def _written(workload: str) -> str:
    if workload == FIRST_WORKLOAD:
        return ""
    name = quote(workload, safe="")
    return name if len(name) <= LONGEST else hashlib.sha256(workload.encode()).hexdigest()[:LONGEST]
