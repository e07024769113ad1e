"""The cells under watch: their ways with counters, and the tests that judge them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

from ...planner.plans.observation import CellObservation, Observation
from ...planner.plans.plan import Plan, PlanCell
from ...planner.plans.schedule import promised_contexts
from ...planner.strategies.plain import PlainPolicy
from ..batch.sequence import Sequence
from ..batch.step_config import PLAIN, StepConfig, plain_setup
from ..engine.step_output import StepOutput
from ..plan_choice import Choice
from .counters import RoundBlock, RoundSums
from .decoded import TextRounds, is_told_by_texts, rounds_along, stretches_by
from .drift import PromiseTest
from .guard import DRAFTED_BURST, PLAIN_BURST, Guard, Way
from .options import WatchOptions

Now = Callable[[], str]  # UTC, ISO 8601


class Lane:
    """One way of running one cell, and its counters.

    Attributes:
        cell, reach: None where there is no plan; `reach` selects the rounds of blocks.
        setup: an object of its own, compared by identity.
        since, total: counts after the last observation, and before it.
        speeds: tokens/s of the blocks since the last observation.
        promise: None where the plan promises nothing: not the cell's own way, or another device.
    """

    __slots__ = ("block", "cell", "is_planned", "promise", "reach", "setup", "since", "speeds", "total")

    def __init__(
        self,
        cell: PlanCell | None,
        setup: StepConfig,
        *,
        is_planned: bool,
        reach: Reach | None = None,
        promise: PromiseTest | None = None,
    ) -> None:
        self.cell, self.setup, self.is_planned = cell, setup, is_planned
        self.reach, self.promise = reach, promise
        self.since, self.total = RoundSums(setup), RoundSums(setup)
        self.speeds: list[float] = []
        self.block = RoundBlock()

    def observed(self, *tallies: RoundSums) -> CellObservation | None:
        """Return the observation of this lane's tallies together; None where nothing ran."""
        if not sum(tally.rounds for tally in tallies):
            return None
        return CellObservation(
            batch=self.cell.batch if self.cell else 0,
            context=self.cell.context if self.cell else 0,
            is_planned=self.is_planned,
            policy=self.setup.policy.code,
            drafter=self.setup.drafter,
            rounds=sum(tally.rounds for tally in tallies),
            tokens=sum(tally.tokens for tally in tallies),
            kept=tuple(map(sum, zip(*(tally.kept for tally in tallies), strict=True))),
            draft_ms=sum(tally.draft_ms for tally in tallies),
            verify_ms=sum(tally.verify_ms for tally in tallies),
            round_ms=sum(tally.round_ms for tally in tallies),
            faults=sum(tally.faults for tally in tallies),
            block_tokens_per_s=tuple(self.speeds),
        )

    def begin_anew(self) -> None:
        """Move the counts since the last observation to the total."""
        self.total.take(self.since)
        self.speeds.clear()


class WatchedCell:
    """One cell and all its ways, the planned one first, plain decoding among them; `guard` is None for a single way."""

    __slots__ = ("cell", "guard", "lanes", "plain")

    def __init__(self, lanes: tuple[Lane, ...], guard: Guard | None) -> None:
        self.cell, self.lanes, self.guard = lanes[0].cell, lanes, guard
        self.plain = next(lane for lane in lanes if isinstance(lane.setup.policy, PlainPolicy))

    @property
    def lane(self) -> Lane:
        """The way for the next round."""
        return self.lanes[0 if self.guard is None else self.guard.wanted]

    @property
    def planned(self) -> Lane:
        """The planned way."""
        return self.lanes[0]

    def note_text(self, text: Sequence, rounds: TextRounds) -> None:
        """Add a finished text to the comparisons with challengers that need no model."""
        if self.guard is None:
            return
        current = self.lanes[self.guard.current].setup
        own_rounds = sum(asked is current for asked, _ in rounds)
        stretches = stretches_by(current, rounds, len(text.request.prompt))
        for number, lane in enumerate(self.lanes):
            if own_rounds and lane.setup is not current and is_told_by_texts(lane.setup):
                self.guard.note_text(number, own_rounds, rounds_along(lane.setup, text.tokens, stretches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What observations are about: a stored plan, and where and how it runs; see `Observation`."""

    plan_id: int
    device: str
    dtype: str
    source: str
    spectune: str


class Ledger:
    """Every cell of a plan, or one of plain decoding; one thread counts, any may read, by a lock no round takes."""

    def __init__(self, choice: Choice, options: WatchOptions, subject: Subject | None, now: Now) -> None:
        """Allocate the counters; cells share the rate of false alarms; `subject` None: observations are not stored."""
        self.cells = _cells(choice, options)
        self._subject, self._now = subject, now
        self._told: list[str] = []
        self._began = now()
        self._lock = Lock()

    def tell(self, message: str) -> None:
        """Store an event for the next observation."""
        self._told.append(message)

    def take(self) -> Observation | None:
        """Return the observation since the last call; None where nothing ran, whose events wait, or without subject."""
        subject = self._subject
        with self._lock:
            seen = [lane.observed(lane.since) for lane in self._lanes()]
            for lane in self._lanes():
                lane.begin_anew()
            cells = tuple(cell for cell in seen if cell is not None)
            if subject is not None and not cells:
                return None
            told, self._told = tuple(self._told), []
            began, self._began = self._began, self._now()
        if subject is None:
            return None
        return Observation(
            plan_id=subject.plan_id,
            device=subject.device,
            dtype=subject.dtype,
            source=subject.source,
            spectune=subject.spectune,
            began=began,
            ended=self._began,
            cells=cells,
            events=told,
        )

    def totals(self) -> list[CellObservation]:
        """Return every lane's sums since the beginning, without those that never ran."""
        with self._lock:
            seen = [lane.observed(lane.total, lane.since) for lane in self._lanes()]
        return [cell for cell in seen if cell is not None]

    def _lanes(self) -> list[Lane]:
        return [lane for cell in self.cells for lane in cell.lanes]


def _cells(choice: Choice, options: WatchOptions) -> list[WatchedCell]:
    if choice.plan is None:
        return [WatchedCell((Lane(None, _own(PLAIN), is_planned=False),), None)]
    rate = options.false_alarms / len(choice.plan.cells)
    return [_watched(choice, choice.plan, cell, options, rate) for cell in choice.plan.cells]


def _watched(choice: Choice, plan: Plan, cell: PlanCell, options: WatchOptions, rate: float) -> WatchedCell:
    setup = choice.setup(cell)
    promise = None
    is_here = choice.match is not None and choice.match.grade == "same"
    is_own = (setup.policy, setup.drafter) == (cell.policy, cell.drafter)
    if is_here and choice.is_in_planned_dtype and is_own:
        promise = PromiseTest(cell.prediction.low, cell.prediction.high, rate)
    reach = reach_of(plan, cell, is_own=is_own)
    lanes, shares = [Lane(cell, _own(setup), is_planned=True, reach=reach, promise=promise)], [options.probe_share]
    others = reach_of(plan, cell, is_own=False)
    if not isinstance(setup.policy, PlainPolicy):
        lanes.append(Lane(cell, plain_setup(cell), is_planned=False, reach=others))
        shares.append(options.probe_share)
    rivals = choice.rivals_of(cell) if options.rival_share else ()
    for rival in rivals:
        lanes.append(Lane(cell, _own(rival), is_planned=False, reach=others))
        shares.append(options.rival_share / len(rivals))
    if len(lanes) == 1:
        return WatchedCell(tuple(lanes), None)
    ways = [Way(burst=_burst(lane), share=share) for lane, share in zip(lanes, shares, strict=True)]
    return WatchedCell(tuple(lanes), Guard(rate, ways, is_doubtful=choice.is_guess))


def _burst(lane: Lane) -> int:
    return PLAIN_BURST if isinstance(lane.setup.policy, PlainPolicy) else DRAFTED_BURST


def _own(setup: StepConfig) -> StepConfig:
    """Return a copy of a setup, an object that no other cell has."""
    return replace(setup)


NEAR = 1.25  # as a factor, either way


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The rounds by which a way of running a cell is judged.

    Behind c tokens a round takes a + b c ms, with a, b >= 0. At the cell's own context C, its share s = b C / (a + b C)
    grows with the context, so that

      round_ms(c) = round_ms(C) * (1 + s (c / C - 1))

    b is the slope to the next cell of the same batch, on either side; it continues beyond the outermost cells. Where a
    plan has no other context of a batch, b is unknown: only what is near C is judged, as if b were 0.
    """

    batch: int
    temperature: float
    context: int  # the cell's own
    low: float  # contexts
    high: float
    below: float = 0.0  # share of a round at the cell's context that grows with it, for shorter ones
    above: float = 0.0  # for longer ones

    def holds(self, done: StepOutput) -> bool:
        """Whether a round is one of them: no faults, and the right batch, context and temperature."""
        is_alike = len(done.kept) == self.batch and done.temperature == self.temperature
        return is_alike and not done.faults and self.low <= done.context <= self.high

    def at_home_ms(self, done: StepOutput) -> float:
        """Return the time that a round would have taken at the cell's own context."""
        share = self.above if done.context > self.context else self.below
        return done.round_ms / (1.0 + share * (done.context / self.context - 1.0))


def reach_of(plan: Plan, cell: PlanCell, *, is_own: bool) -> Reach:
    """Return the reach of a cell's own way, or of plain decoding in it."""
    beside = sorted((one for one in plan.cells if one.batch == cell.batch), key=lambda one: one.context)
    place = beside.index(cell)
    before, after = beside[:place][-1:], beside[place + 1 :][:1]
    below, above = before or after, after or before
    low, high = promised_contexts(plan, cell) if below else (cell.context / NEAR, cell.context * NEAR)
    return Reach(
        batch=cell.batch,
        temperature=plan.temperature,
        context=cell.context,
        low=low,
        high=high,
        below=_share(cell, below[0], is_own=is_own) if below else 0.0,
        above=_share(cell, above[0], is_own=is_own) if above else 0.0,
    )


def _share(cell: PlanCell, other: PlanCell, *, is_own: bool) -> float:
    """Return the share of a cell's round that grows with the context; by plain rounds if the other way differs."""
    is_alike = is_own and (other.policy, other.drafter) == (cell.policy, cell.drafter)
    near, far = (cell.prediction, other.prediction) if is_alike else (cell.plain, other.plain)
    slope_ms = (far.round_ms - near.round_ms) / (other.context - cell.context)
    whole_ms = (cell.prediction if is_own else cell.plain).round_ms
    return min(max(slope_ms * cell.context / whole_ms, 0.0), 1.0)
