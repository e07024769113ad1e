"""How fast the machine is while others race, against when it was profiled.

A plan promises speeds at the pace at which its surfaces were timed. A shared or warm machine has another pace a minute
later. The gauge tells the two apart: in its turns it times the forward of a plain round, the way the profiler timed it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from ..planner.plan import PlanCell
from ..runtime.models.forward import CausalModel
from ..runtime.shapes import ForwardShapes

CALLS = 4  # a turn


class Gauge:
    """Someone in a race who decodes nothing: it times one forward, whatever its share of the work."""

    name = "gauge"

    def __init__(self, cell: PlanCell, target: CausalModel, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        """Prepare the forward of the cell's plain rounds."""
        tokens = cell.run_tokens[1]
        shapes = ForwardShapes(
            target,
            identity="gauge",
            dtype=str(target.dtype),
            role="verify",
            slots=cell.batch,
            capacity=cell.context + tokens,
        )
        self._batch, self._profiled_ms = cell.batch, cell.plain.verify_ms
        self._call, self._wait = shapes.prepare(cell.batch, cell.context, tokens), shapes.wait
        self._clock_ns = clock_ns
        self._ms: list[float] = []

    def advance(self, share: float) -> None:
        """Time a few calls after an untimed one."""
        self._call()
        self._wait()
        for _ in range(CALLS):
            start = self._clock_ns()
            self._call()
            self._wait()
            self._ms.append((self._clock_ns() - start) / 1e6)

    @property
    def tokens_per_s(self) -> float:
        """What plain decoding would reach if a round were its forward alone."""
        return 1e3 * self._batch / statistics.median(self._ms)

    @property
    def speed(self) -> float:
        """The machine's pace in this race over its pace when it was profiled: below 1 it is slower now."""
        return self._profiled_ms / statistics.median(self._ms)
