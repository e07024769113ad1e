"""What a session has seen so far: every cell with its timed calls, and what they say once drift is taken out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .domain import Shape
from .drift import EXPONENTS, WINDOWS, Bools, Drift, Floats, Ints, Pool, fit_drift, group_medians, robust_scale
from .records.measurement import HELD_OUT, MEDIAN_OVER_MEAN, Measurement, Purpose
from .records.pooling import LONG_MS, Shapes, pooled
from .records.visit import Visit

FEWEST_FOR_NOISE = 3  # calls a cell needs before its scatter counts
FEWEST_OF_SENTINELS = 5  # calls that tell how a sentinel was disturbed
FAST = 0.1  # share of its calls that are fast
FIRST_NOISE = 0.05  # relative scatter of a call, taken until enough were made


@dataclass(slots=True, eq=False)
class SurfaceCell:
    """One shape of one surface while it is measured."""

    number: int
    surface: int
    shape: Shape
    purpose: Purpose
    visits: list[Visit] = field(default_factory=list)
    failure: str | None = None
    ms: float = math.nan  # drift taken out; NaN before the first timed call
    clean: int = 0  # timed calls at moments that were not disturbed
    doubt: float = 0.0  # half the distance, relatively, between the order statistics that bracket the median

    @property
    def timed(self) -> int:
        """Calls that were timed."""
        return len(self.visits)


class Tally:
    """All cells of a session by surface and shape."""

    def __init__(self) -> None:
        self.cells: list[SurfaceCell] = []
        self.drift = Drift(slowness=np.ones(0), is_disturbed=np.zeros(0, dtype=np.bool_), window=0)
        self._known: dict[tuple[int, Shape], SurfaceCell] = {}
        self._noise: dict[int, float] = {}
        self._places: dict[int, int] = {}  # ordinal of a visit -> its place in the drift
        self._windows_chosen_at = 0  # calls there were when the drift's window was last chosen

    def cell(self, surface: int, shape: Shape, purpose: Purpose = "design") -> SurfaceCell:
        """Return the cell of a shape; a new one where there was none."""
        known = self._known.get((surface, shape))
        if known is None:
            known = SurfaceCell(number=len(self.cells), surface=surface, shape=shape, purpose=purpose)
            self.cells.append(known)
            self._known[surface, shape] = known
        return known

    def knows(self, surface: int, shape: Shape) -> bool:
        """Whether a shape is among the cells."""
        return (surface, shape) in self._known

    def of_surface(self, surface: int) -> list[SurfaceCell]:
        """Return the cells of one surface, in the order they were added."""
        return [cell for cell in self.cells if cell.surface == surface]

    def note(self, visit: Visit) -> None:
        """Take one visit in; estimates change at the next `settle`."""
        cell = self.cell(visit.surface, shape_of(visit), visit.purpose)
        if visit.ms is None:
            cell.failure = visit.failure
        else:
            cell.visits.append(visit)
            if math.isnan(cell.ms):
                cell.ms = visit.ms

    def settle(self) -> None:
        """Estimate every moment's drift and every cell's cost from all calls so far."""
        visits = sorted((v for cell in self.cells for v in cell.visits), key=lambda visit: visit.ordinal)
        if not visits:
            return
        numbers = np.array([self.cell(v.surface, shape_of(v)).number for v in visits])
        ms = np.array(_timed(visits))
        self._places = {visit.ordinal: place for place, visit in enumerate(visits)}
        surfaces = np.array([v.surface for v in visits])
        windows, exponents = self._windows(len(visits))
        self.drift = fit_drift(
            ms,
            numbers,
            windows,
            surfaces=surfaces,
            exponents=exponents,
            pool=self._pool(numbers),
            apart=np.array([v.purpose == HELD_OUT for v in visits]),
        )
        logs = np.log(ms) - np.log(self.drift.slowness)
        is_clean = self._clean(numbers)
        costs = group_medians(logs[is_clean], numbers[is_clean], len(self.cells))
        counts = np.bincount(numbers[is_clean], minlength=len(self.cells))
        undisturbed = np.bincount(numbers[~self.drift.is_disturbed], minlength=len(self.cells))
        ordered = np.split(logs[is_clean][np.lexsort((logs[is_clean], numbers[is_clean]))], np.cumsum(counts)[:-1])
        for cell in self.cells:
            if cell.visits:
                cell.ms, cell.clean = float(np.exp(costs[cell.number])), int(undisturbed[cell.number])
                cell.doubt = median_doubt(ordered[cell.number])
        self._settle_noise(logs[is_clean] - costs[numbers[is_clean]], numbers[is_clean], counts)

    def noise(self, surface: int) -> float:
        """Return the relative standard deviation of one timed call of a surface, drift taken out."""
        return self._noise.get(surface, FIRST_NOISE)

    def error(self, cell: SurfaceCell, more: int = 0) -> float:
        """Return the relative standard error of a cell's median with `more` further calls; inf without calls."""
        if not cell.timed + more:
            return math.inf
        calls = max(cell.clean, 1)
        shared = MEDIAN_OVER_MEAN * self.noise(cell.surface) / math.sqrt(calls)
        return max(shared, cell.doubt) * math.sqrt(calls / (calls + more))

    def disturbance(self) -> float:
        """Return how many times as long as its fast calls the median call of every sentinel took; 1.0 if unknown."""
        timed = [_timed(cell.visits) for cell in self.cells if cell.purpose == "sentinel"]
        told = [ms for ms in timed if len(ms) >= FEWEST_OF_SENTINELS]
        return min((float(np.median(ms) / np.quantile(ms, FAST)) for ms in told), default=1.0)

    def measurements(self, surface: int) -> tuple[Measurement, ...]:
        """Return a surface's cells as records, failures included; cells never reached are left out."""
        found = (self._measurement(cell) for cell in self.of_surface(surface) if cell.failure or cell.visits)
        return tuple(sorted(found, key=lambda cell: (cell.batch, cell.context_tokens, cell.tokens)))

    def _measurement(self, cell: SurfaceCell) -> Measurement:
        batch, context, tokens = cell.shape
        places = [] if cell.failure else [self._places[visit.ordinal] for visit in cell.visits]
        return Measurement(
            batch=batch,
            context_tokens=context,
            tokens=tokens,
            repeats_ms=() if cell.failure else tuple(_timed(cell.visits)),
            drift=tuple(self.drift.slowness[places].tolist()),
            failure=cell.failure,
            disturbed=tuple(self.drift.is_disturbed[places].tolist()),
            purpose=cell.purpose,
        )

    def _windows(self, calls: int) -> tuple[Sequence[int], Sequence[float]]:
        """Return windows and exponents to choose from: all of them whenever there are half as many calls more."""
        if calls < 1.5 * self._windows_chosen_at and self.drift.window:
            return (self.drift.window,), (self.drift.exponent,)
        self._windows_chosen_at = calls
        return WINDOWS, EXPONENTS

    def _pool(self, numbers: Ints) -> Pool | None:
        """Return how cells of a surface better each other's costs; held-out ones keep their own and lend none."""
        calls, parts = np.bincount(numbers), []
        timed: dict[int, list[SurfaceCell]] = {}
        for cell in self.cells:
            if cell.visits and cell.purpose != HELD_OUT:
                timed.setdefault(cell.surface, []).append(cell)
        for surface, own in timed.items():
            if min(cell.ms for cell in own) >= LONG_MS:
                places = np.array([cell.number for cell in own])
                errors = MEDIAN_OVER_MEAN * self.noise(surface) / np.sqrt(calls[places])
                parts.append((places, Shapes.of([cell.shape for cell in own]), errors))

        def better(logs: Floats) -> Floats:
            found = logs.copy()
            for places, shapes, errors in parts:
                found[places] = np.log(pooled(shapes, np.exp(logs[places]), errors))
            return found

        return better if parts else None

    def _clean(self, numbers: Ints) -> Bools:
        """Return (calls,): calls at undisturbed moments, and all of a cell that has no others."""
        undisturbed = ~self.drift.is_disturbed
        has_clean = np.bincount(numbers[undisturbed], minlength=len(self.cells)) > 0
        chosen: Bools = undisturbed | ~has_clean[numbers]
        return chosen

    def _settle_noise(self, residuals: Floats, numbers: Ints, counts: Ints) -> None:
        surfaces = np.array([cell.surface for cell in self.cells])
        enough = counts[numbers] >= FEWEST_FOR_NOISE
        freed = residuals * np.sqrt(counts[numbers] / np.maximum(counts[numbers] - 1, 1))
        for surface in set(surfaces.tolist()):
            own = freed[enough & (surfaces[numbers] == surface)]
            if len(own) >= 2 * FEWEST_FOR_NOISE:
                self._noise[surface] = max(robust_scale(own), 1e-4)


def median_doubt(ordered: Floats) -> float:
    """Return half the distance of the order statistics one standard error of rank beside the median; 0.0 for one call.

    Source: the binomial interval of a median, e.g. Conover, Practical Nonparametric Statistics, section 3.2.
    """
    low = max(math.floor((len(ordered) - math.sqrt(len(ordered))) / 2), 0)
    return float(ordered[len(ordered) - 1 - low] - ordered[low]) / 2


def shape_of(visit: Visit) -> Shape:
    """Return the shape a visit was of."""
    return visit.batch, visit.context_tokens, visit.tokens


def _timed(visits: Iterable[Visit]) -> list[float]:
    return [visit.ms for visit in visits if visit.ms is not None]
