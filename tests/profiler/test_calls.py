"""Calls kept ready, and a drafter's run behind the target."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakSet

import pytest

from spectune.errors import MeasurementError
from spectune.profiler.clock import Call
from spectune.profiler.domain import Domain, Shape
from spectune.profiler.latency import measure
from spectune.profiler.records.visit import Visit
from spectune.profiler.session import PreparedCalls, TimingSettings
from spectune.profiler.tally import SurfaceCell

from ..support.fake_machine import DEVICE, FakeMachine, FakeRunner
from ..support.kept_visits import KeptVisits

DOMAIN = Domain(batches=(1, 2), contexts=(0, 100), most_tokens=16)


def cell(surface: int, tokens: int, ms: float = math.nan) -> SurfaceCell:
    return SurfaceCell(number=0, surface=surface, shape=(1, 0, tokens), purpose="design", ms=ms)


LONG, SHORT = cell(0, 60, 70.0), cell(0, 2, 12.0)  # of the target
DRAFTED, OTHER = cell(1, 1, 0.5), cell(1, 4, 0.6)


def calls_on(machine: FakeMachine, most: int = 512, breaks_at: int = 10**9) -> PreparedCalls:
    """Return the calls of a target, and of a drafter."""
    target = FakeRunner(machine, identity="large", breaks_at=breaks_at)
    return PreparedCalls([target, FakeRunner(machine, identity="small", role="draft")], most)


def run(calls: PreparedCalls, *cells: SurfaceCell) -> None:
    for each in cells:
        calls.use(each)()


def test_a_drafter_that_ran_last_runs_behind_the_target_s_shortest_call() -> None:
    calls = calls_on(machine := FakeMachine())
    run(calls, DRAFTED, LONG, SHORT, LONG, OTHER)
    calls.use(DRAFTED)
    calls.cool()
    assert machine.log[5:] == [SHORT.shape]


def test_a_drafter_that_has_just_warmed_up_runs_behind_the_target() -> None:
    calls = calls_on(machine := FakeMachine())
    run(calls, SHORT, DRAFTED)
    calls.cool()
    assert machine.log == [SHORT.shape, DRAFTED.shape, SHORT.shape]


def test_a_drafter_behind_the_target_runs_at_once() -> None:
    calls = calls_on(machine := FakeMachine())
    run(calls, DRAFTED, SHORT)
    calls.use(DRAFTED)
    calls.cool()
    assert machine.log == [DRAFTED.shape, SHORT.shape] and calls.cooling_ms == 0.0


def test_what_the_target_takes_between_is_told_per_visit_of_a_drafter() -> None:
    calls = calls_on(FakeMachine())
    run(calls, DRAFTED, OTHER, SHORT)
    for visited in (DRAFTED, OTHER, DRAFTED):  # the first is behind the target anyway
        calls.use(visited)
        calls.cool()
    assert calls.cooling_ms == 2 * SHORT.ms / 3


def test_a_target_s_call_that_breaks_is_forgotten_and_nothing_else() -> None:
    eight = cell(0, 8, 18.0)
    calls = calls_on(FakeMachine(), breaks_at=1)
    calls.use(eight)
    run(calls, DRAFTED)
    calls.cool()
    assert eight not in calls and DRAFTED in calls


def test_the_calls_used_last_are_kept_the_target_s_among_them() -> None:
    calls = calls_on(FakeMachine(), most=2)
    run(calls, SHORT, DRAFTED)
    calls.cool()
    run(calls, OTHER)
    assert SHORT in calls and OTHER in calls and DRAFTED not in calls


def drafter_on(machine: FakeMachine) -> FakeRunner:
    """Return a drafter whose calls are faster where it ran last, in whatever shape."""

    def cost_ms(shape: Shape) -> float:
        return 3.0 if machine.last_model == "small" else 3.5

    return FakeRunner(machine, cost_ms, identity="small", role="draft")


def drafter_s_visits(runners: Sequence[FakeRunner], prepared: int = 512) -> list[Visit]:
    """Return the visits of the drafter among runners; its shapes are no other's."""
    own, sink = [runner.role for runner in runners].index("draft"), KeptVisits()
    domains = [DOMAIN] * len(runners)
    domains[own] = replace(DOMAIN, batches=(3,))
    session = TimingSettings(clock=runners[0].machine, prepared=prepared)
    measure(runners, domains, device=DEVICE, budget_s=20.0, sink=sink, session=session)
    return [visit for visit in sink.kept if visit.surface == own]


@pytest.mark.parametrize("prepared", [512, 6])
def test_no_visit_of_a_drafter_finds_its_own_weights_in_the_caches(prepared: int) -> None:
    machine = FakeMachine()
    visits = drafter_s_visits([FakeRunner(machine), drafter_on(machine)], prepared)
    assert [visit.ms for visit in visits] == pytest.approx([3.5] * len(visits))


def test_a_drafter_without_a_target_is_timed_behind_itself() -> None:
    visits = drafter_s_visits([drafter_on(FakeMachine())])
    assert {visit.ms for visit in visits} == {3.0} and not any(visit.failure for visit in visits)


def test_a_target_that_breaks_is_no_failure_of_the_drafter_behind_it() -> None:
    class Breaking(FakeRunner):
        """Forwards that raise behind a call of the drafter's that ran twice."""

        def _run(self, shape: Shape) -> None:
            last = self.machine.log[-2:]
            if last == last[:1] * 2 and last[0][0] == 3:
                raise MeasurementError("broken")
            super()._run(shape)

    machine = FakeMachine()
    visits = drafter_s_visits([drafter_on(machine), Breaking(machine)])
    assert len({visit.tokens for visit in visits}) > 3 and not any(visit.failure for visit in visits)


@pytest.mark.parametrize("budget_s", [5.0, 20.0])
def test_a_drafter_far_faster_than_its_target_is_timed_within_the_budget(budget_s: float) -> None:
    machine, noise = FakeMachine(), random.Random(1)
    machine.disturbance = lambda _: noise.uniform(0.9, 1.1)
    runners = [
        FakeRunner(machine, lambda shape: 20.0 + shape[2]),
        FakeRunner(machine, lambda shape: 0.2, identity="small", role="draft"),
    ]
    session = TimingSettings(clock=machine)
    measure(runners, [DOMAIN, DOMAIN], device=DEVICE, budget_s=budget_s, sink=KeptVisits(), session=session)
    assert 0.9 * budget_s < machine.now_s() < 1.1 * budget_s


@dataclass
class Crammed(FakeRunner):
    """Forwards of which no two can be kept ready at once, or none can run beside another."""

    kept: WeakSet[Call] = field(default_factory=WeakSet)
    runs_alone: bool = False

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Call:
        if self.kept and not self.runs_alone:
            raise MemoryError("no room for two")
        call = super().prepare(batch, context_tokens, tokens)
        self.kept.add(call)
        return call

    def _run(self, shape: Shape) -> None:
        if len(self.kept) > 1:
            raise MemoryError("no room beside another")
        super()._run(shape)


@pytest.mark.parametrize("runs_alone", [False, True])
def test_calls_that_hold_the_memory_of_another_are_let_go_and_prepared_anew(runs_alone: bool) -> None:
    runner, sink = Crammed(FakeMachine(), runs_alone=runs_alone), KeptVisits()
    session = TimingSettings(clock=runner.machine)
    measure([runner], [DOMAIN], device=DEVICE, budget_s=10.0, sink=sink, session=session)
    assert len({visit.tokens for visit in sink.kept}) > 3 and not any(visit.failure for visit in sink.kept)
