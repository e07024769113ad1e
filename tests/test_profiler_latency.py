"""A measuring session, on a machine whose time is ours: nothing here waits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from spectune.errors import MeasurementError
from spectune.profiler.clock import Call
from spectune.profiler.latency import Interrupted, Progress, Rounds, Shape, measure
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.device import Device
from spectune.profiler.records.measurement import Measurement
from spectune.profiler.records.surface import LatencySurface, Role

DEVICE = Device(kind="cpu", name="Test", index=0, memory_bytes=1, cores=1, threads=1)
CELLS: list[Shape] = [(1, context, tokens) for context in (0, 100) for tokens in (1, 2, 4, 8)]
Disturbance = Callable[[int], float]  # call number -> how many times slower it is


@dataclass
class FakeMachine:
    """A clock that only calls move, and the list of what ran on it."""

    disturbance: Disturbance = lambda _: 1.0
    time_ms_now: float = 0.0
    log: list[Shape] = field(default_factory=list)

    def now_s(self) -> float:
        return self.time_ms_now / 1e3

    def time_ms(self, call: Call) -> float:
        start_ms = self.time_ms_now
        call()
        return self.time_ms_now - start_ms

    def spend(self, shape: Shape, cost_ms: float) -> None:
        self.time_ms_now += cost_ms * self.disturbance(len(self.log))
        self.log.append(shape)


@dataclass
class FakeRunner:
    """Forwards that cost 10 + tokens + context / 100 milliseconds of a fake machine."""

    machine: FakeMachine
    identity: str = "model"
    role: Role = "verify"
    regime: str = "eager"
    dtype: str = "float32"
    too_large: int = 10**9  # tokens from which prepare raises
    stop_at: int = 10**9  # call number at which the user presses Ctrl-C
    breaks_at: int = 10**9  # call number at which the forward raises

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Call:
        if tokens >= self.too_large:
            raise MemoryError("no room\nfor this shape")
        shape = (batch, context_tokens, tokens)
        return lambda: self._run(shape)

    def _run(self, shape: Shape) -> None:
        if len(self.machine.log) == self.stop_at:
            raise KeyboardInterrupt
        if len(self.machine.log) >= self.breaks_at and shape[2] == 8:
            raise RuntimeError("broken")
        self.machine.spend(shape, true_ms(shape))


@dataclass
class ListSink:
    """Keeps cells in memory."""

    cells: list[tuple[SurfaceKey, Measurement]] = field(default_factory=list)

    def add(self, surface: SurfaceKey, measurement: Measurement) -> None:
        self.cells.append((surface, measurement))


def true_ms(shape: Shape) -> float:
    return 10.0 + shape[2] + shape[1] / 100


def profile(
    runner: FakeRunner,
    *,
    cells: list[Shape] = CELLS,
    budget_s: float = 0.0,
    sink: ListSink | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LatencySurface:
    (surface,) = measure(
        [runner],
        [cells],
        device=DEVICE,
        budget_s=budget_s,
        sink=sink or ListSink(),
        seed=seed,
        progress=progress,
        rounds=Rounds(warmup_calls=1, untimed_calls=0, clock=runner.machine),
    )
    return surface


def test_every_cell_is_timed_exactly_on_a_quiet_machine() -> None:
    surface = profile(FakeRunner(FakeMachine()))
    assert {
        (cell.batch, cell.context_tokens, cell.tokens): pytest.approx(cell.median_ms) for cell in surface.measurements
    } == {shape: true_ms(shape) for shape in CELLS}


def test_the_minimum_of_rounds_is_run_without_any_budget() -> None:
    surface = profile(FakeRunner(FakeMachine()), budget_s=0.0)
    assert {len(cell.repeats_ms) for cell in surface.measurements} == {5}


def test_a_larger_budget_is_used_and_not_overrun() -> None:
    machine = FakeMachine()
    surface = profile(FakeRunner(machine), budget_s=3.0)
    assert len(surface.measurements[0].repeats_ms) > 20
    assert 2.8 < machine.now_s() <= 3.0


def test_every_round_visits_every_cell_once() -> None:
    machine = FakeMachine()
    profile(FakeRunner(machine))
    warmup, timed = machine.log[:8], machine.log[8:]
    assert Counter(warmup) == Counter(CELLS)
    assert all(Counter(timed[start : start + 8]) == Counter(CELLS) for start in range(0, 40, 8))


def test_every_round_has_an_order_of_its_own_that_the_seed_repeats() -> None:
    machines = [FakeMachine(), FakeMachine()]
    for machine in machines:
        profile(FakeRunner(machine), seed=7)
    orders = [tuple(machines[0].log[start : start + 8]) for start in range(8, 48, 8)]
    assert len(set(orders)) == 5
    assert machines[0].log == machines[1].log


def test_rounds_mix_the_cells_of_all_runners() -> None:
    machine, sink = FakeMachine(), ListSink()
    runners = [FakeRunner(machine), FakeRunner(machine, identity="other", role="draft")]
    cells: list[list[Shape]] = [[(1, 0, 1), (1, 0, 2)], [(1, 0, 3), (1, 0, 4)]]
    surfaces = measure(
        runners, cells, device=DEVICE, budget_s=1.0, sink=sink, rounds=Rounds(untimed_calls=0, clock=machine)
    )
    halves = [{shape[2] > 2 for shape in machine.log[start : start + 2]} for start in range(8, len(machine.log), 4)]
    assert {True, False} in halves  # some round opens with one cell of each
    assert [(surface.model, surface.role) for surface in surfaces] == [("model", "verify"), ("other", "draft")]


def test_tenfold_outliers_do_not_move_any_cell() -> None:
    noise = random.Random(5)
    machine = FakeMachine(disturbance=lambda _: 10.0 if noise.random() < 0.15 else noise.gauss(1.0, 0.01))
    surface = profile(FakeRunner(machine), budget_s=6.0)
    found = [surface.latency(*shape).ms for shape in CELLS]
    assert found == pytest.approx([true_ms(shape) for shape in CELLS], rel=0.02)


def test_a_machine_that_slows_down_for_some_rounds_is_seen_through() -> None:
    machine = FakeMachine(disturbance=lambda call: 1.5 if (call - 8) // 8 in (0, 2) else 1.0)
    surface = profile(FakeRunner(machine))
    assert [surface.latency(*shape).ms for shape in CELLS] == pytest.approx([true_ms(shape) for shape in CELLS])


def test_a_machine_that_slows_down_steadily_adds_no_spread() -> None:
    machine = FakeMachine(disturbance=lambda call: 1.0 + 0.1 * ((call - 8) // 8))
    assert profile(FakeRunner(machine)).relative_error() == pytest.approx(0.0, abs=1e-9)


def test_raw_repeats_are_stored_beside_their_drift() -> None:
    machine = FakeMachine(disturbance=lambda call: 1.5 if (call - 8) // 8 in (0, 2) else 1.0)
    cell = profile(FakeRunner(machine)).measurements[0]
    assert np.array(cell.repeats_ms) / true_ms(CELLS[0]) == pytest.approx([1.5, 1.0, 1.5, 1.0, 1.0])
    assert cell.drift == pytest.approx([1.5, 1.0, 1.5, 1.0, 1.0])


def test_a_shape_that_cannot_run_is_data_and_the_others_go_on() -> None:
    surface = profile(FakeRunner(FakeMachine(), too_large=8))
    failures = {cell.tokens: cell.failure for cell in surface.measurements}
    assert failures == {1: None, 2: None, 4: None, 8: "MemoryError: no room"}


def test_a_shape_that_breaks_in_a_later_round_is_a_failure_too() -> None:
    surface = profile(FakeRunner(FakeMachine(), breaks_at=20))
    broken = {cell.failure for cell in surface.measurements if cell.tokens == 8}
    assert broken == {"RuntimeError: broken"}


def test_a_session_of_failures_alone_ends() -> None:
    surface = profile(FakeRunner(FakeMachine(), too_large=1), budget_s=100.0)
    assert all(cell.failure for cell in surface.measurements)


def test_the_sink_receives_every_cell_once_under_its_surface() -> None:
    sink = ListSink()
    surface = profile(FakeRunner(FakeMachine(), too_large=8), sink=sink)
    assert [cell for _, cell in sink.cells] == list(surface.measurements)
    assert {key.device for key, _ in sink.cells} == {DEVICE.fingerprint}


def test_a_cell_asked_for_twice_is_measured_once() -> None:
    assert len(profile(FakeRunner(FakeMachine()), cells=[(1, 0, 1), (1, 0, 1)]).measurements) == 1


def test_an_interrupted_session_keeps_the_cells_with_three_repeats() -> None:
    machine, sink = FakeMachine(), ListSink()
    with pytest.raises(KeyboardInterrupt):
        profile(FakeRunner(machine, stop_at=8 + 2 * 8 + 5), sink=sink)  # within the third round
    finished = {(cell.batch, cell.context_tokens, cell.tokens) for _, cell in sink.cells}
    assert finished == set(machine.log[-5:])


def test_an_interruption_carries_what_was_saved() -> None:
    sink = ListSink()
    with pytest.raises(Interrupted, match="8 cells") as stopped:
        profile(FakeRunner(FakeMachine(), stop_at=8 + 4 * 8), sink=sink)
    assert [cell for surface in stopped.value.surfaces for cell in surface.measurements] == [c for _, c in sink.cells]


def test_an_interruption_before_any_cell_is_finished_saves_nothing() -> None:
    with pytest.raises(Interrupted) as stopped:
        profile(FakeRunner(FakeMachine(), stop_at=3))
    assert stopped.value.surfaces == ()


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    profile(FakeRunner(FakeMachine()), progress=shares.append)
    assert shares == sorted(shares)
    assert (len(shares), shares[-1]) == (40, 1.0)


def test_runners_without_a_list_of_cells_are_refused() -> None:
    with pytest.raises(MeasurementError, match="1 runners but 0 lists"):
        measure([FakeRunner(FakeMachine())], [], device=DEVICE, budget_s=1.0, sink=ListSink())


def test_two_runners_of_one_surface_are_refused() -> None:
    runner = FakeRunner(FakeMachine())
    with pytest.raises(MeasurementError, match="same surface"):
        measure([runner, runner], [CELLS, CELLS], device=DEVICE, budget_s=1.0, sink=ListSink())
