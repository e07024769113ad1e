"""One session of timing: rounds over a few cells each, between sentinels, in sittings, until the budget is spent."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..errors import MeasurementError
from .clock import Call, Clock, clock_in
from .design import Design
from .protocols import MeasurementSink, ShapeRunner
from .records.pooling import LONG_MS
from .records.role import CAPTURED
from .records.visit import Visit
from .repeats import Repeats, repeats_of
from .tally import SurfaceCell, Tally


class PreparedCalls:
    """Prepared calls by cell, up to a limit, the least recently used dropped first; it also tracks cached weights.

    A drafter's forward is timed as behind one of the target (`repeats.py`): where the drafter ran last, the target's
    shortest call goes between.
    """

    def __init__(self, runners: Sequence[ShapeRunner], most: int) -> None:
        self._runners, self._most = runners, most
        self._calls: dict[SurfaceCell, Call] = {}
        self._last_model = ""  # ModelIdentity.key of the cell used last
        self._is_warm = False  # whether the cell used last finds its own model's weights in the caches
        self._short_runs, self._cooling_ms = 0, 0.0

    def __contains__(self, cell: SurfaceCell) -> bool:
        return cell in self._calls

    def use(self, cell: SurfaceCell) -> Call:
        """Return the call of a cell, prepared if it is not, to be run next; raises what `prepare` does."""
        runner, is_new = self._runners[cell.surface], cell not in self._calls
        call = runner.prepare(*cell.shape) if is_new else self._calls.pop(cell)
        self._calls[cell] = call  # the last one is the one used last
        if len(self._calls) > self._most:
            del self._calls[next(iter(self._calls))]
        self._is_warm = is_new or self._last_model == runner.identity  # a new one warms up first
        self._last_model = runner.identity
        return call

    def tried(self, cell: SurfaceCell, timed: Callable[[], float]) -> float:
        """Return a cell call's timing; a failed one is tried again without the others, which hold memory."""
        try:
            return timed()
        except MeasurementError:  # it fits in no memory
            raise
        except Exception:
            self.drop(cell)
            if not self._calls:
                raise
            self._calls.clear()
        return timed()

    def drop(self, cell: SurfaceCell) -> None:
        """Forget the call of a cell, if there is one."""
        self._calls.pop(cell, None)

    def cool(self) -> None:
        """Run the target's shortest ready call, untimed, where the last cell would find its weights in the caches."""
        self._short_runs += 1
        target = self._shortest_of_target() if self._is_warm else None
        if target is None:
            return
        self._calls[target] = call = self._calls.pop(target)
        try:
            call()
        except Exception:  # its own next visit meets it again and keeps it as its own failure
            self.drop(target)
        self._cooling_ms += 0.0 if math.isnan(target.ms) else target.ms

    @property
    def cooling_ms(self) -> float:
        """What `cool` took on average, 0 before it was called."""
        return self._cooling_ms / max(self._short_runs, 1)

    def _shortest_of_target(self) -> SurfaceCell | None:
        targets = [cell for cell in self._calls if self._runners[cell.surface].role == "verify"]
        return min(targets, key=lambda cell: math.inf if math.isnan(cell.ms) else cell.ms, default=None)


Progress = Callable[[float], None]  # called with the share of the budget spent, in [0, 1]
ROUNDS = 30  # of a whole session; each revisits the sentinels twice
SHORTEST_ROUND_S, LONGEST_ROUND_S = 0.25, 2.0  # where forwards are not slow
FEWEST_CELLS = 4  # that a round has room for beside its sentinels, each as dear as the dearest of them
STABLE = 0.05  # relative change between two medians below which a warm-up is over
LONGEST_WARM_UP = 0.05  # share of a sitting, over all sentinels


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSettings:
    """How a session is run, whatever its budget."""

    warmup_calls: int = 2  # before a cell's first timed call
    own_ms: float = 0.5  # of ours, around every visit
    prepared: int = 512  # calls kept ready at once
    clock: Clock | None = None  # the device's own where None
    seed: int = 0
    until: float = 1.0  # share of the budget, in (0, 1], at which this sitting ends; the first points are timed anyway

    def __post_init__(self) -> None:
        if not 0.0 < self.until <= 1.0:
            raise MeasurementError(
                f"a sitting ends at a share of the budget in (0, 1], got {self.until}; give 1 for all of it"
            )
        if self.warmup_calls < 0 or self.prepared < 1:
            raise MeasurementError(f"need no negative calls, and prepared >= 1, got {self}")


@dataclass(slots=True, kw_only=True)
class TimingSession:
    """A session on its way: `sit` times one sitting of it, each call in the sink before the next."""

    runners: list[ShapeRunner]
    design: Design
    settings: TimingSettings
    clock: Clock
    calls: PreparedCalls
    sink: MeasurementSink
    budget_s: float
    progress: Progress | None
    tally: Tally = field(default_factory=Tally)
    first: list[SurfaceCell] = field(default_factory=list)  # without which a surface has holes
    begun: set[int] = field(default_factory=set)  # surfaces of which something has run
    ordinal: int = 0
    round: int = 0
    before_s: float = 0.0  # spent by an earlier, stopped run
    start_s: float = 0.0

    def sit(self) -> None:
        """Go on from the sink's calls until the sitting's share of the budget is spent or nothing is left to learn."""
        self.start_s = self.clock.now_s()
        self.design.begin(self.tally, random.Random(self.settings.seed))
        self.first = [cell for cell in self.tally.cells if cell.purpose != "held-out"]
        self._resume()
        if (left_s := self._left_s()) > 0.0:
            self._warm_up(left_s)
        longest_s = 0.0
        while (left_s := self._left_s()) > longest_s / 2 or not self._has_first_points():
            begun_s, wanted_s = self.clock.now_s(), self._round_s()
            if not self._round(wanted_s if not self._has_first_points() else min(wanted_s, left_s)):
                break
            longest_s = min(max(longest_s, self.clock.now_s() - begun_s), max(wanted_s, LONGEST_ROUND_S))

    def _resume(self) -> None:
        for visit in self.sink.visits():
            self.tally.note(visit)
            self.ordinal, self.round = max(self.ordinal, visit.ordinal + 1), max(self.round, visit.round + 1)
            self.before_s = max(self.before_s, visit.spent_s)
        self.tally.settle()
        self._require_some_ran()

    def _warm_up(self, left_s: float) -> None:
        sentinels = self._sentinels()
        share_s = LONGEST_WARM_UP * left_s / max(len(sentinels), 1)
        for cell in sentinels:
            try:
                self._warm_until_stable(cell, share_s)
            except Exception:  # the cell's first visit meets it again and keeps it as the cell's failure
                self.calls.drop(cell)

    def _warm_until_stable(self, cell: SurfaceCell, longest_s: float) -> None:
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
        sentinels, share = self._sentinels(), self._spent_s() / self.budget_s
        around_s = 2 * sum(self._sentinels_ms()) / 1000.0
        chosen = self.design.choose(self.tally, seconds - around_s, share, self._visit_ms)
        if not chosen and all(cell.visits for cell in sentinels):
            return False
        chosen = [cell for cell in chosen if cell.purpose != "sentinel"]
        order = random.Random(f"{self.settings.seed} {self.round}")
        order.shuffle(chosen)
        for cell in (*sentinels, *chosen, *reversed(sentinels)):
            if cell.failure is None:
                self._visit(cell)
        self.round += 1
        self.tally.settle()
        self._require_some_ran()
        return True

    def _sentinels(self) -> list[SurfaceCell]:
        return [cell for cell in self.tally.cells if cell.purpose == "sentinel" and cell.failure is None]

    def _visit(self, cell: SurfaceCell) -> None:
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

    def _timed_ms(self, cell: SurfaceCell) -> float:
        is_new, known_ms = cell not in self.calls, cell.ms
        call, clock, repeats = self._ready(cell), self._clock(cell.surface), self._repeats(cell.surface)
        for _ in range(self.settings.warmup_calls if is_new else 0):
            known_ms = clock.time_ms(call)
            if known_ms >= LONG_MS:  # it reads its weights from memory, whatever ran before
                break
        if repeats.is_cooled(known_ms):
            self.calls.cool()
        return repeats.time_ms(call, clock, known_ms)

    def _ready(self, cell: SurfaceCell) -> Call:
        """Return the call of a cell; a surface's first one, and each captured one, has run."""
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

    def _left_s(self) -> float:
        return self.settings.until * self.budget_s - self._spent_s()

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

    def _has_first_points(self) -> bool:
        return all(cell.visits or cell.failure for cell in self.first)
