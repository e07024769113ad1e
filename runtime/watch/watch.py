"""The watch over a running plan: called by the decoder before a round and after it."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ...planner.plans.plan import PlanCell
from ...planner.strategies.naming import name_of
from ...profiler.records.wire import to_json
from ..batch.sequence import Sequence
from ..batch.step_config import PlannedSchedule, StepConfig
from ..batch.stopwatch import BEGUN, DONE, Stopwatch
from ..engine.step_output import StepOutput
from ..plan_choice import Choice
from .counters import BlockMeans, is_timed
from .decoded import DecodedTexts, TextRounds
from .guard import Switch
from .ledger import Lane, Ledger, Now, Subject, WatchedCell
from .observations import ObservationWriter
from .options import WatchOptions
from .prometheus import MetricFamily, Sample, cell_families, exposition
from .state import gauge, state_families

Kind = Literal["switch", "drift", "fault", "unwritten"]
LOSSY_TOKENS = "Tokens that only a lossy rule let be; the target would have said others."
NUMBER = re.compile(r"\d+(\.\d+)?")  # bytes that could not be had differ from fault to fault
MOST_TOLD = 5  # different faults of one source that are events
REPLAYED = 0.005  # of the time, for what other ways would have needed along texts that were decoded
MOST_EVENTS = 1000  # later ones are counted and not kept


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """Something a person should know; `batch` and `context` are the cell's, None where it is about no cell."""

    kind: Kind
    message: str
    batch: int | None = None
    context: int | None = None


def utc_now() -> str:
    """Return the present moment, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Watch:
    """Follows a plan, counts its rounds, and leaves it cell by cell where it is measured to lose.

    `schedule` is the decoder's schedule and `note` its observer; neither changes the target's output. One thread
    decodes. Any other may read `prometheus` and `events`, which has the oldest first.
    """

    def __init__(
        self,
        choice: Choice,
        options: WatchOptions | None = None,
        *,
        subject: Subject | None = None,  # the stored plan that observations are of; None: they are not stored
        writer: ObservationWriter | None = None,
        on_event: Callable[[WatchEvent], None] | None = None,
        now: Now = utc_now,
    ) -> None:
        """Begin with the chosen plan; plain decoding without one.

        Args:
            writer: of observations; the rest is written when the watch or the process ends.
            on_event: gets every event between two rounds; its exceptions reach the caller.
        """
        self.events: list[WatchEvent] = []
        self._choice, self._options, self._on_event = choice, options or WatchOptions(), on_event
        self._writer = writer
        self._ledger = Ledger(choice, self._options, subject, now)
        self._planned = PlannedSchedule(choice.plan) if choice.plan is not None else None
        self._cells = {id(watched.cell): watched for watched in self._ledger.cells}
        self._ran = {id(lane.setup): (cell, lane) for cell in self._ledger.cells for lane in cell.lanes}
        self._last: tuple[Lane, Lane] | None = None  # what the last round was asked to be, and what was run
        self._texts = self._rounds = self._told = self._lossy = 0
        self._decoded, self._stopwatch = DecodedTexts(), Stopwatch(DONE + 1)
        self._round_ms = self._replay_ms = 0.0
        self._faulty: dict[str, set[str]] = {}  # what went wrong, by drafter; "" is the verification
        self._given_up: set[str] = set()  # drafters; every call's decoder gives them up anew
        self._unwritten = ""
        if writer is not None:
            weakref.finalize(self, _write_rest, self._ledger, writer)

    def schedule(self, batch: int, context: int) -> StepConfig:
        """Return the setup of the next round."""
        if self._planned is None:
            return self._ledger.cells[0].lane.setup
        return self._cells[id(self._planned(batch, context))].lane.setup

    def note(self, done: StepOutput, /) -> None:
        """Take a finished round."""
        found = self._ran.get(id(done.setup if done.instead_of is None else done.instead_of))
        if found is None:
            self._last = None
            return  # a round of another schedule
        cell, asked = found
        lane = asked if done.instead_of is None else cell.plain  # whoever is to draft is not here, or rests
        is_settled = (asked, lane) == self._last  # the first round after a change pays for it: its drafter catches up
        self._last = asked, lane
        tokens = lane.since.add(done)
        self._lossy += sum(done.lossy)
        self._texts += done.left
        self._round_ms += done.round_ms if is_timed(done) else 0.0
        for text in self._decoded.note(done, asked.setup):
            self._replay(*text)
        if done.faults:
            self._note_faults(done, lane)
        if is_settled and not done.is_behind and is_timed(done):
            self._judge(cell, asked, lane, done, tokens)
        elif cell.guard is not None and not is_settled:
            cell.guard.note_change(done.round_ms if is_timed(done) else 0.0)
        elif cell.guard is not None and done.is_behind:
            cell.guard.note_unjudged(cell.lanes.index(asked))
        self._rounds += 1
        if self._rounds >= self._options.flush_rounds:
            self.flush()

    def flush(self) -> None:
        """Pass the observations since the last call to the writer, without waiting; call it between requests."""
        self._rounds = 0
        observation = self._ledger.take()
        if self._writer is None:
            return
        if observation is not None:
            self._writer.submit(to_json(observation))
        failure = self._writer.failure
        if failure and failure != self._unwritten:
            self._tell(WatchEvent(kind="unwritten", message=f"observations cannot be written and wait: {failure}"))
        self._unwritten = failure

    def prometheus(self) -> str:
        """Return all counters since the beginning in Prometheus' text format."""
        lossy: list[Sample] = [({}, float(self._lossy))] if any(s.is_lossy for s in self._choice.setups) else []
        waiting: list[Sample] = [] if self._writer is None else [({}, float(self._writer.waiting))]
        return exposition(
            [
                *cell_families(self._ledger.totals()),
                *state_families(self._choice, self._ledger.cells),
                MetricFamily(name="spectune_lossy_tokens_total", kind="counter", about=LOSSY_TOKENS, samples=lossy),
                MetricFamily(
                    name="spectune_events_total", kind="counter", about="Events told.", samples=[({}, self._told)]
                ),
                gauge("observations_waiting", "Observations that are not in the store yet.", waiting),
            ]
        )

    def _replay(self, text: Sequence, rounds: TextRounds) -> None:
        """Compare challengers by a finished text, unless that has used its share of the time already."""
        if self._replay_ms > REPLAYED * self._round_ms:
            return
        self._stopwatch.mark(BEGUN)
        for cell in self._ledger.cells:
            cell.note_text(text, rounds)
        self._stopwatch.mark(DONE)
        self._replay_ms += self._stopwatch.ms(BEGUN, DONE)

    def _judge(self, cell: WatchedCell, asked: Lane, lane: Lane, done: StepOutput, tokens: int) -> None:
        """Add a round to the contest, by the setup it should have had, and to a block, by the one it had."""
        if cell.guard is not None:
            switch = cell.guard.note(
                way=cell.lanes.index(asked),
                batch=len(done.kept),
                tokens=tokens,
                round_ms=done.round_ms,
                texts=self._texts,
            )
            if switch is not None:
                self._tell(_switched(cell, switch))
        if lane.reach is None or not lane.reach.holds(done):
            return
        options, block = self._options, lane.block
        block.add(tokens, lane.reach.at_home_ms(done), self._texts)
        if block.is_full(
            self._texts, rounds=options.block_rounds, ended=options.block_texts, longest=options.longest_block
        ):
            self._judge_block(cell, lane, block.close())

    def _judge_block(self, cell: WatchedCell, lane: Lane, block: BlockMeans) -> None:
        """Store a block's speed, if it was timed, and compare it with the promise, if there is one."""
        speed = block.tokens_per_s
        if not speed:
            return
        lane.speeds.append(speed)
        if lane.promise is None or lane.cell is None:
            return
        direction = lane.promise.add(speed)
        if direction == "slower" and cell.guard is not None:
            cell.guard.hurry()
        if direction is not None:
            low, high = lane.promise.low, lane.promise.high
            self._tell_of(
                lane,
                "drift",
                f"{_named(lane.setup)} is {direction} than the plan's interval of {low:.1f} to {high:.1f} "
                f"tokens/s, {speed:.1f} at last: {_apart(block, lane.cell)}",
            )

    def _note_faults(self, done: StepOutput, lane: Lane) -> None:
        """Report each source's first faults of each kind, and its end; others only count."""
        for fault in done.faults:
            source = fault.drafter or ""
            known, kind = self._faulty.setdefault(source, set()), NUMBER.sub("#", fault.reason)
            is_new = kind not in known and len(known) < MOST_TOLD
            if is_new or (fault.is_last and source not in self._given_up):
                known.add(kind)
                self._given_up |= {source} if fault.is_last else set()
                self._tell_of(lane, "fault", f"{source or 'the verification'}: {fault.reason}")

    def _tell_of(self, lane: Lane, kind: Kind, message: str) -> None:
        cell = lane.cell
        if cell is None:
            self._tell(WatchEvent(kind=kind, message=message))
            return
        where = f"batch {cell.batch}, context {cell.context}: "
        self._tell(WatchEvent(kind=kind, message=where + message, batch=cell.batch, context=cell.context))

    def _tell(self, event: WatchEvent) -> None:
        self._told += 1
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)
        self._ledger.tell(event.message)
        if self._on_event is not None:
            self._on_event(event)


def _apart(block: BlockMeans, cell: PlanCell) -> str:
    """Say how a block's rounds, at the cell's own context, differ from the promise, and what to do about it."""
    promise, kept = cell.prediction, block.tokens / cell.batch
    by_texts = math.log(kept) - math.log(promise.tokens_per_round)
    by_rounds = math.log(block.ms) - math.log(promise.round_ms)
    on_these = " on texts like these" if abs(by_texts) > abs(by_rounds) else ""
    return (
        f"a sequence keeps {kept:.2f} tokens of a round where {promise.tokens_per_round:.2f} were promised, in "
        f"{block.ms:.2f} ms, as at {cell.context} tokens, where {promise.round_ms:.2f} were; profile{on_these} and "
        "plan again"
    )


def _switched(cell: WatchedCell, switch: Switch) -> WatchEvent:
    assert cell.cell is not None, "only cells of a plan are switched"
    new, old = (_named(cell.lanes[way].setup) for way in (switch.taken, switch.left))
    return WatchEvent(
        kind="switch",
        message=(
            f"batch {cell.cell.batch}, context {cell.cell.context}: {new} was faster than {old} in {switch.lost} of "
            f"{switch.comparisons} comparisons, {switch.ratio:.2f} times over all; it decodes by {new} now, and "
            f"{old} is tried again now and then"
        ),
        batch=cell.cell.batch,
        context=cell.cell.context,
    )


def _named(setup: StepConfig) -> str:
    return name_of(setup.policy.code, setup.drafter)


def _write_rest(ledger: Ledger, writer: ObservationWriter) -> None:
    observation = ledger.take()
    if observation is not None or writer.waiting:
        writer.close(None if observation is None else to_json(observation))
