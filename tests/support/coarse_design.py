"""Profiles of toys that end when every shape and every kind of round has been timed a few times, whatever the pace.

How exact the surface of a toy is, no test of a job asks; a profile of a real model goes on until its budget is spent.
A module whose profiles are toys' imports the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spectune.profiler.design import AdaptiveDesign, VisitMs
from spectune.profiler.tally import SurfaceCell, Tally

CALLS = 3  # of each shape; as many rounds are timed in a turn
TURNS = ("TURNS", "TEXT_TURNS", "STACK_TURNS", "PLAIN_TURNS", "BLIND_TURNS", "BLIND_TEXT_TURNS")
BUDGET_S = 10.0  # more than they take on a busy machine
DESIGNERS = ("profiler.latency", "tuning.measuring.timing", "tuning.latency_profile")  # modules that make a design


class CoarseDesign(AdaptiveDesign):
    """Times what every session begins with, and looks nowhere else."""

    def choose(self, tally: Tally, seconds: float, spent_share: float, visit_ms: VisitMs) -> list[SurfaceCell]:
        """Return the cells that were timed too rarely."""
        return [cell for cell in tally.cells if cell.timed < CALLS and cell.failure is None]


@pytest.fixture(scope="module", autouse=True)
def timed_coarsely() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in DESIGNERS:
            patch.setattr(f"spectune.{module}.AdaptiveDesign", CoarseDesign)
        for name in TURNS:
            patch.setattr(f"spectune.tuning.measuring.overhead.{name}", 1)
        yield
