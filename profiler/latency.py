"""Time forwards in shuffled rounds, so that what disturbs the machine disturbs all alike, and write each call down."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from ..errors import MeasurementError
from .calls import PreparedCalls
from .clock import Call, Clock, clock_in, clock_of
from .design import AdaptiveDesign, Design
from .domain import Domain
from .protocols import CellValue, MeasurementSink, ShapeRunner, SurfaceKey
from .records.device import Device
from .records.role import CAPTURED
from .records.surface import LatencySurface
from .records.visit import Visit
from .repeats import Repeats, repeats_of
from .tally import Cell, Tally

Progress = Callable[[float], None]  # called with the share of the budget spent, in [0, 1]
ROUNDS = 30  # of a whole session; each revisits the sentinels twice
SHORTEST_ROUND_S, LONGEST_ROUND_S = 0.25, 2.0  # where forwards are not slow
FEWEST_CELLS = 4  # that a round has room for beside its sentinels, each as dear as the dearest of them
STABLE = 0.05  # relative change between two medians below which a warm-up is over
LONGEST_WARM_UP = 0.05  # share of the budget, over all runners


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How a session is run, whatever its budget."""

    warmup_calls: int = 2  # before a cell's first timed call
    own_ms: float = 0.5  # of ours, around every visit
    prepared: int = 512  # calls kept ready at once
    clock: Clock | None = None  # the device's own where None

    def __post_init__(self) -> None:
        if self.warmup_calls < 0 or self.prepared < 1:
            raise MeasurementError(f"need no negative calls, and prepared >= 1, got {self}")


class Interrupted(KeyboardInterrupt):
    """The session was stopped by hand; every call timed so far is in the sink."""

    def __init__(self, calls: int) -> None:
        super().__init__(f"stopped; {calls} timed calls are kept, and the same command goes on from there")
        self.calls = calls


def measure(
    runners: Sequence[ShapeRunner],
    domains: Sequence[Domain],
    *,
    device: Device,
    budget_s: float,
    sink: MeasurementSink,
    seed: int = 0,
    held_out: int = 30,
    value: CellValue | None = None,
    design: Design | None = None,
    progress: Progress | None = None,
    session: Session | None = None,
) -> tuple[LatencySurface, ...]:
    """Return the measured surface of each runner, in their order.

    Rounds visit a few cells each, in random order, between visits of the sentinels that every round shares. Each call
    is in the sink before the next one. Between rounds the design chooses where to look next. A cell that raises becomes
    a failure and the others go on. Raw repeats are kept beside the drift of their rounds.

    Args:
        runners: what can be run.
        domains: what each runner's surface is to answer.
        device: where; the caller holds its lock.
        budget_s: seconds for warm-up and rounds together, those of an earlier, stopped run included.
        sink: receives every call when it was timed, and the surfaces at the end; gives back what a stopped run timed.
        seed: of the held-out cells and the visiting order.
        held_out: random shapes timed only to judge the surfaces, over all runners.
        value: what a shape is worth to a decision.
        design: chooses the cells; adaptive where absent.
        progress: told the share of the budget spent after every call.
        session: calls per visit and clock; defaults where absent.

    Raises:
        Interrupted: a KeyboardInterrupt came.
        MeasurementError: runners and domains do not match, no shape of a runner can run, or the first points of all
            surfaces do not fit into the budget.
    """
    if len(runners) != len(domains):
        raise MeasurementError(f"{len(runners)} runners but {len(domains)} domains; give one domain per runner")
    chosen = design or AdaptiveDesign(domains, held_out=held_out, value=value)
    settings = session or Session()
    run = _Run(
        runners=list(runners),
        design=chosen,
        settings=settings,
        clock=settings.clock or clock_of(device),
        calls=PreparedCalls(runners, settings.prepared),
        sink=sink,
        budget_s=budget_s,
        progress=progress,
        seed=seed,
    )
    keys = _keys(runners, device)
    try:
        run.whole()
    except KeyboardInterrupt as interrupt:
        raise Interrupted(run.ordinal) from interrupt
    surfaces = tuple(_surface(key, run.tally, number) for number, key in enumerate(keys))
    sink.finish_surfaces(surfaces)
    return surfaces


@dataclass(slots=True, kw_only=True)
class _Run:
    """One session on its way."""

    runners: list[ShapeRunner]
    design: Design
    settings: Session
    clock: Clock
    calls: PreparedCalls
    sink: MeasurementSink
    budget_s: float
    progress: Progress | None
    seed: int
    tally: Tally = field(default_factory=Tally)
    first: list[Cell] = field(default_factory=list)  # without which a surface has holes
    begun: set[int] = field(default_factory=set)  # surfaces of which something has run
    ordinal: int = 0
    round: int = 0
    before_s: float = 0.0  # spent by an earlier, stopped run
    start_s: float = 0.0

    def whole(self) -> None:
        """Go on from what the sink holds until the budget is spent or nothing is left to learn."""
        self.start_s = self.clock.now_s()
        self.design.begin(self.tally, random.Random(self.seed))
        self.first = [cell for cell in self.tally.cells if cell.purpose != "held-out"]
        self._resume()
        self._warm_up()
        longest_s = 0.0
        while (left_s := self.budget_s - self._spent_s()) > longest_s / 2:
            begun_s, wanted_s = self.clock.now_s(), self._round_s()
            if not self._round(min(wanted_s, left_s)):
                break
            longest_s = min(max(longest_s, self.clock.now_s() - begun_s), max(wanted_s, LONGEST_ROUND_S))
        self._require_first_points()

    def _resume(self) -> None:
        for visit in self.sink.visits():
            self.tally.note(visit)
            self.ordinal, self.round = max(self.ordinal, visit.ordinal + 1), max(self.round, visit.round + 1)
            self.before_s = max(self.before_s, visit.spent_s)
        self.tally.settle()
        self._require_some_ran()

    def _warm_up(self) -> None:
        """Call each runner's sentinels untimed until two medians in a row agree."""
        sentinels = self._sentinels()
        share_s = LONGEST_WARM_UP * self.budget_s / max(len(sentinels), 1)
        for cell in sentinels:
            try:
                self._warm_until_stable(cell, share_s)
            except Exception:  # the cell's first visit meets it again and keeps it as the cell's failure
                self.calls.drop(cell)

    def _warm_until_stable(self, cell: Cell, longest_s: float) -> None:
        call, clock = self._ready(cell), self._clock(cell.surface)
        begun_s, last = self.clock.now_s(), 0.0
        while self.clock.now_s() - begun_s < longest_s:
            middle = statistics.median(clock.time_ms(call) for _ in range(3))
            if not cell.visits:
                cell.ms = middle  # a first guess, so that the first round can be planned
            if abs(middle - last) <= STABLE * middle:
                return
            last = middle

    def _round(self, seconds: float) -> bool:
        """Time one round; False where nothing is left to learn."""
        sentinels, share = self._sentinels(), self._spent_s() / self.budget_s
        around_s = 2 * sum(self._sentinels_ms()) / 1000.0
        chosen = self.design.choose(self.tally, seconds - around_s, share, self._visit_ms)
        if not chosen and all(cell.visits for cell in sentinels):
            return False
        chosen = [cell for cell in chosen if cell.purpose != "sentinel"]
        order = random.Random(f"{self.seed} {self.round}")
        order.shuffle(chosen)
        for cell in (*sentinels, *chosen, *reversed(sentinels)):
            if cell.failure is None:
                self._visit(cell)
        self.round += 1
        self.tally.settle()
        self._require_some_ran()
        return True

    def _sentinels(self) -> list[Cell]:
        return [cell for cell in self.tally.cells if cell.purpose == "sentinel" and cell.failure is None]

    def _visit(self, cell: Cell) -> None:
        """Time one call and write it down; whatever it raises becomes the cell's failure."""
        ms, failure = None, None
        try:
            ms = self.calls.tried(cell, partial(self._timed_ms, cell))
        except Exception as error:  # whatever keeps a shape from running is data; the reasons are not ours to list
            first_line = str(error).strip().partition("\n")[0]
            failure = f"{type(error).__name__}: {first_line}".removesuffix(": ")
            self.calls.drop(cell)
        batch, context, tokens = cell.shape
        visit = Visit(
            ordinal=self.ordinal,
            surface=cell.surface,
            batch=batch,
            context_tokens=context,
            tokens=tokens,
            purpose=cell.purpose,
            round=self.round,
            spent_s=self._spent_s(),
            ms=ms,
            failure=failure,
        )
        self.sink.add_visit(visit)
        self.tally.note(visit)
        self.ordinal += 1
        if self.progress is not None:
            self.progress(min(1.0, self._spent_s() / self.budget_s))

    def _timed_ms(self, cell: Cell) -> float:
        is_new, known_ms = cell not in self.calls, cell.ms
        call, clock, repeats = self._ready(cell), self._clock(cell.surface), self._repeats(cell.surface)
        for _ in range(self.settings.warmup_calls if is_new else 0):
            known_ms = clock.time_ms(call)
        if repeats.is_cooled(known_ms):
            self.calls.cool()
        return repeats.time_ms(call, clock, known_ms)

    def _ready(self, cell: Cell) -> Call:
        """Return the call of a cell; the first of a surface has run, and so has one that is captured in its first run.

        Kernels are compiled and chosen then, once per process or even per machine: that is no part of the budget.
        """
        is_captured = cell not in self.calls and self.runners[cell.surface].regime == CAPTURED
        begun_s, call = self.clock.now_s(), self.calls.use(cell)
        if is_captured or cell.surface not in self.begun:
            self.clock.time_ms(call)
            self.start_s += self.clock.now_s() - begun_s
            self.begun.add(cell.surface)
        return call

    def _clock(self, surface: int) -> Clock:
        return clock_in(self.clock, self.runners[surface].regime)

    def _visit_ms(self, surface: int, call_ms: float) -> float:
        """Return what timing one call of a surface takes altogether."""
        repeats = self._repeats(surface)
        cooling_ms = self.calls.cooling_ms if repeats.is_cooled(call_ms) else 0.0
        return cooling_ms + repeats.visit_ms(call_ms) + self.settings.own_ms

    def _repeats(self, surface: int) -> Repeats:
        return repeats_of(self.runners[surface].role)

    def _round_s(self) -> float:
        """Return how long a round is: a share of the budget, and no less than the sentinels and a few cells take."""
        visits_ms = self._sentinels_ms()
        least_s = (2 * sum(visits_ms) + FEWEST_CELLS * max(visits_ms, default=0.0)) / 1000.0
        return max(least_s, min(max(self.budget_s / ROUNDS, SHORTEST_ROUND_S), LONGEST_ROUND_S))

    def _sentinels_ms(self) -> list[float]:
        return [self._visit_ms(cell.surface, cell.ms) for cell in self._sentinels() if cell.visits]

    def _spent_s(self) -> float:
        return self.before_s + self.clock.now_s() - self.start_s

    def _require_some_ran(self) -> None:
        """Refuse a surface whose first points all failed: what is larger would fail too."""
        for number, runner in enumerate(self.runners):
            own = [cell for cell in self.first if cell.surface == number]
            if own and all(cell.failure for cell in own):
                least = min(own, key=lambda cell: cell.shape)
                name = f"{runner.role} of {runner.identity}, {runner.regime}, {runner.dtype}"
                raise MeasurementError(
                    f"no shape could run ({name}), not even (batch, context, tokens) = {least.shape}: {least.failure}; "
                    "ask for shorter contexts or leave this model out; where memory was short, free some and run the "
                    "same with --fresh"
                )

    def _require_first_points(self) -> None:
        """Refuse a surface that could not be looked up everywhere it is asked for."""
        done = [cell for cell in self.first if cell.visits or cell.failure]
        if len(done) < len(self.first):
            needed = 2.0 * self.budget_s * len(self.first) / max(len(done), 1)
            raise MeasurementError(
                f"{self.budget_s:g} s were enough for {len(done)} of the first {len(self.first)} cells; they are kept: "
                f"run the same with a budget of {needed:.0f} s or more, or ask for fewer batches or contexts"
            )


def _keys(runners: Sequence[ShapeRunner], device: Device) -> list[SurfaceKey]:
    keys = [
        SurfaceKey(
            device=device.fingerprint,
            model=runner.identity,
            role=runner.role,
            regime=runner.regime,
            dtype=runner.dtype,
            attention=runner.attention,
        )
        for runner in runners
    ]
    if len(set(keys)) < len(keys):
        raise MeasurementError("two runners measure the same surface; join them in one")
    return keys


def _surface(key: SurfaceKey, tally: Tally, number: int) -> LatencySurface:
    return LatencySurface(**asdict(key), measurements=tally.measurements(number))
