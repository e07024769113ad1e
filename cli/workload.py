"""Which workload is taken where none is named, as a line for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .report import tell
from .settings import Settings

if TYPE_CHECKING:
    from ..tuning.profiled_last import Workloads


def tell_workload(settings: Settings, workloads: Workloads, why: str) -> None:
    """Say which workload was taken, where another one could have been meant."""
    if workloads.others:
        tell(settings, f"workload {workloads.last!r}, {why}; --workload takes another: {', '.join(workloads.others)}")
