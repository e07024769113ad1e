"""When the forwards of a profile are timed: in sittings between its other steps, so that they meet more than one mood.

The pace of a shared or warm machine wanders, within minutes by a tenth and at times by a third. A plan made of one
stretch promises speeds at the pace of some seconds. In two records of such a machine (`benchmarks/pace.py`), the later
pace was off by 8 and 11 % (root mean square) from that of one window of seconds, and by 5 and 8 % from the median of
four windows fifteen seconds apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...profiler.domain import Domain
from ...profiler.protocols import Journal
from ...profiler.records.acceptance import AcceptanceTrace
from ...profiler.records.device import Device
from ...profiler.records.role import EAGER
from ...profiler.records.surface import LatencySurface
from ..parts import FinishedWith, finished_surfaces
from ..request import Identities, ProfileRequest
from ..steps import Progress
from .decoding import Family
from .timing import time_surfaces

FIRST, SECOND = 0.25, 0.5  # share of the budget spent before anything is recorded, and when all is


class Sittings:
    """The timing of a profile's forwards in sittings that continue each other; the last finishes it.

    Other regimes than eager are timed at a stretch, at the end: each sitting would compile or capture a shape again.
    """

    def __init__(
        self,
        request: ProfileRequest,
        identities: Identities,
        domains: Sequence[Domain],
        *,
        device: Device,
        journal: Journal,
        progress: Progress,
    ) -> None:
        """Take what is to be timed, and its journal; what an earlier run has finished stays as it is."""
        self._surfaces = finished_surfaces(journal)  # None before the last sitting
        self._request, self._identities, self._domains = request, identities, domains
        self._device, self._journal, self._progress = device, journal, progress

    def sit(self, family: Family, until: float, traces: Sequence[AcceptanceTrace] = ()) -> None:
        """Time forwards until a share below 1 of the budget is spent; traces and errors as in `time_surfaces`."""
        if self._request.regime == EAGER:
            self._timed(family, until, traces, ())

    def finish(
        self, family: Family, traces: Sequence[AcceptanceTrace], readings: Sequence[LatencySurface]
    ) -> tuple[LatencySurface, ...]:
        """Spend the rest of the budget, store all surfaces with those of reading prompts, and return them."""
        self._timed(family, 1.0, traces, readings)
        assert self._surfaces is not None, "the last sitting finishes them"
        return self._surfaces

    def _timed(
        self,
        family: Family,
        until: float,
        traces: Sequence[AcceptanceTrace],
        readings: Sequence[LatencySurface],
    ) -> None:
        if self._surfaces is not None:
            return
        own = time_surfaces(
            self._request,
            family,
            self._identities,
            self._domains,
            device=self._device,
            sink=FinishedWith(self._journal, readings),
            traces=traces,
            progress=self._progress,
            until=until,
        )
        if until >= 1.0:
            self._surfaces = (*own, *readings)
