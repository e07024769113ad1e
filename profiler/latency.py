"""Time every shape of every model in shuffled rounds, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from ..errors import MeasurementError
from .clock import Call, Clock, clock_of
from .drift import round_drift
from .protocols import MeasurementSink, ShapeRunner, SurfaceKey
from .records.device import Device
from .records.measurement import Measurement
from .records.surface import LatencySurface

Shape = tuple[int, int, int]  # (batch, context_tokens, tokens)
Progress = Callable[[float], None]  # called with the share done, in [0, 1]
KEPT_WHEN_INTERRUPTED = 3  # repeats a cell needs to be kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How a session is run, whatever its budget."""

    minimum: int = 5  # rounds, also where the budget is spent before
    warmup_calls: int = 2  # per cell, untimed
    untimed_calls: int = 1  # before every timed one that is shorter than `long_ms`
    long_ms: float = 20.0  # a call this long fills the caches itself
    clock: Clock | None = None  # the device's own where None

    def __post_init__(self) -> None:
        if self.minimum < 1 or self.warmup_calls < 0 or self.untimed_calls < 0:
            raise MeasurementError(f"need minimum >= 1 and no negative calls, got {self}")


class Interrupted(KeyboardInterrupt):
    """The session was stopped by hand; what was finished is here and in the sink."""

    def __init__(self, surfaces: tuple[LatencySurface, ...]) -> None:
        super().__init__(f"stopped with {sum(len(surface.measurements) for surface in surfaces)} cells measured")
        self.surfaces = surfaces


def measure(
    runners: Sequence[ShapeRunner],
    cells: Sequence[Sequence[Shape]],
    *,
    device: Device,
    budget_s: float,
    sink: MeasurementSink,
    seed: int = 0,
    progress: Progress | None = None,
    rounds: Rounds | None = None,
) -> tuple[LatencySurface, ...]:
    """Return the measured surface of each runner, in their order; a runner without cells has none.

    Every cell is prepared and warmed up once. Then whole rounds visit all cells in a fresh random order until the
    next one would overrun the budget. A cell that raises becomes a failure and the others go on. Raw repeats are kept
    beside the drift of their rounds, which Measurement.median_ms divides out.

    Args:
        runners: what can be run.
        cells: (batch, context_tokens, tokens) to run, one sequence of them per runner.
        device: where; the caller holds its lock.
        budget_s: seconds for warm-up and rounds together.
        sink: receives every cell once, at the end or on interruption.
        seed: of the visiting order.
        progress: told the share done after every call.
        rounds: minimum rounds, warm-up and clock; defaults where absent.

    Raises:
        Interrupted: a KeyboardInterrupt came; cells with 3 repeats or more, and failures, are saved.
        MeasurementError: runners and cells do not match.
    """
    settings = rounds or Rounds()
    visits = _visits(runners, cells, device)
    session = _Session(visits, settings, settings.clock or clock_of(device), budget_s, progress)
    try:
        session.warm_up()
        session.run(random.Random(seed))
    except KeyboardInterrupt as interrupt:
        raise Interrupted(_save(visits, sink, KEPT_WHEN_INTERRUPTED)) from interrupt
    return _save(visits, sink, 1)


@dataclass(slots=True)
class _Visit:
    """One cell while it is being measured."""

    surface: SurfaceKey
    runner: ShapeRunner
    shape: Shape
    call: Call | None = None
    warm_ms: float = 0.0  # the last warm-up call
    repeats_ms: list[float] = field(default_factory=list)
    failure: str | None = None

    def attempt(self, step: Callable[[], None]) -> None:
        """Run one step of the cell; whatever it raises becomes the cell's failure."""
        try:
            step()
        except Exception as error:  # whatever keeps a shape from running is data; the reasons are not ours to list
            first_line = str(error).strip().partition("\n")[0]
            self.failure = f"{type(error).__name__}: {first_line}".removesuffix(": ")
            self.call = None

    def measurement(self, drift: Sequence[float]) -> Measurement:
        """Return what was seen: the failure, or the repeats and the drift of their rounds."""
        batch, context_tokens, tokens = self.shape
        return Measurement(
            batch=batch,
            context_tokens=context_tokens,
            tokens=tokens,
            repeats_ms=() if self.failure else tuple(self.repeats_ms),
            drift=() if self.failure else tuple(drift[: len(self.repeats_ms)]),
            failure=self.failure,
        )


@dataclass(slots=True)
class _Session:
    """The rounds of one measurement."""

    visits: list[_Visit]
    settings: Rounds
    clock: Clock
    budget_s: float
    progress: Progress | None
    start_s: float = 0.0

    def warm_up(self) -> None:
        """Prepare each cell and call it untimed."""
        self.start_s = self.clock.now_s()
        for visit in self.visits:
            visit.attempt(partial(self._warm, visit))

    def run(self, order: random.Random) -> None:
        """Time all cells round by round."""
        done, longest_s = 0, 0.0
        while done < self.settings.minimum or self._spent_s() + longest_s <= self.budget_s:
            left = [visit for visit in self.visits if visit.failure is None]
            if not left:
                return
            round_start_s = self.clock.now_s()
            order.shuffle(left)
            for place, visit in enumerate(left, start=1):
                visit.attempt(partial(self._time, visit))
                self._tell(done + place / len(left))
            longest_s = max(longest_s, self.clock.now_s() - round_start_s)
            done += 1

    def _warm(self, visit: _Visit) -> None:
        visit.call = visit.runner.prepare(*visit.shape)
        for _ in range(self.settings.warmup_calls):
            visit.warm_ms = self.clock.time_ms(visit.call)

    def _time(self, visit: _Visit) -> None:
        """Time one call right after an untimed one: a decoder's forward finds its weights in the caches too."""
        assert visit.call is not None
        if visit.warm_ms < self.settings.long_ms:
            for _ in range(self.settings.untimed_calls):
                visit.call()
        visit.repeats_ms.append(self.clock.time_ms(visit.call))

    def _spent_s(self) -> float:
        return self.clock.now_s() - self.start_s

    def _tell(self, rounds_done: float) -> None:
        if self.progress is not None:
            of_budget = self._spent_s() / self.budget_s if self.budget_s > 0 else 1.0
            self.progress(min(1.0, of_budget, rounds_done / self.settings.minimum))


def _visits(runners: Sequence[ShapeRunner], cells: Sequence[Sequence[Shape]], device: Device) -> list[_Visit]:
    if len(runners) != len(cells):
        raise MeasurementError(f"{len(runners)} runners but {len(cells)} lists of cells; give one list per runner")
    keys = [_key(runner, device) for runner in runners]
    if len(set(keys)) < len(keys):
        raise MeasurementError("two runners measure the same surface; join their cells in one")
    return [
        _Visit(key, runner, shape)
        for key, runner, shapes in zip(keys, runners, cells, strict=True)
        for shape in dict.fromkeys(shapes)
    ]


def _key(runner: ShapeRunner, device: Device) -> SurfaceKey:
    return SurfaceKey(
        device=device.fingerprint,
        model=runner.identity,
        role=runner.role,
        regime=runner.regime,
        dtype=runner.dtype,
    )


def _save(visits: list[_Visit], sink: MeasurementSink, least_repeats: int) -> tuple[LatencySurface, ...]:
    """Hand the finished cells to the sink and return them as surfaces."""
    drift = round_drift([visit.repeats_ms for visit in visits if visit.repeats_ms]).tolist()
    surfaces: dict[SurfaceKey, list[Measurement]] = {}
    for visit in visits:
        if visit.failure or len(visit.repeats_ms) >= least_repeats:
            surfaces.setdefault(visit.surface, []).append(visit.measurement(drift))
    for surface, measurements in surfaces.items():
        for measurement in measurements:
            sink.add(surface, measurement)
    return tuple(LatencySurface(**asdict(surface), measurements=tuple(seen)) for surface, seen in surfaces.items())
