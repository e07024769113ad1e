"""A measuring session, on a machine whose time is ours: nothing here waits."""

from __future__ import annotations

import math
import random

import pytest

from spectune.errors import MeasurementError
from spectune.profiler.clock import Call
from spectune.profiler.design import AdaptiveDesign
from spectune.profiler.domain import Domain, Shape
from spectune.profiler.latency import MOST_DISTURBED, Interrupted, measure
from spectune.profiler.records.role import CAPTURED
from spectune.profiler.records.surface import LatencySurface
from spectune.profiler.session import Progress, TimingSettings

from ..support.fake_machine import DEVICE, Disturbance, FakeMachine, FakeRunner, smooth_ms
from ..support.kept_visits import KeptVisits
from ..support.memory_journal import MemoryJournal

DOMAIN = Domain(batches=(1, 2), contexts=(0, 100), most_tokens=16)


def edged_ms(shape: Shape) -> float:
    """Return a cost with a step at 23 tokens."""
    return 5.0 + shape[1] / 100 + (10.0 if shape[2] >= 23 else 0.0)


def tiled_ms(shape: Shape) -> float:
    """Return a cost with a step behind every 16 rows."""
    return 2.0 + math.ceil(shape[0] * shape[2] / 16)


def profile(
    runner: FakeRunner,
    *,
    domain: Domain = DOMAIN,
    budget_s: float = 60.0,
    sink: MemoryJournal | None = None,
    seed: int = 0,
    held_out: int = 6,
    progress: Progress | None = None,
    sittings: tuple[float, ...] = (1.0,),
) -> LatencySurface:
    kept = MemoryJournal() if sink is None else sink
    for until in sittings:
        surfaces = measure(
            [runner],
            [domain],
            device=DEVICE,
            budget_s=budget_s,
            sink=kept,
            design=AdaptiveDesign([domain], held_out=held_out),
            progress=progress,
            session=TimingSettings(clock=runner.machine, seed=seed, until=until),
        )
        assert len(surfaces) == (until == 1.0)
    return surfaces[0]


def test_every_cell_is_timed_exactly_on_a_quiet_machine() -> None:
    surface = profile(FakeRunner(FakeMachine()))
    timed = {(cell.batch, cell.context_tokens, cell.tokens): cell.median_ms for cell in surface.measurements}
    assert timed == pytest.approx({shape: smooth_ms(shape) for shape in timed})


@pytest.mark.parametrize("rows", [16, 0])
def test_a_step_behind_a_tile_is_known_from_the_first_points_where_tiles_are(rows: int) -> None:
    domain = Domain(batches=(1, 8), contexts=(0,), most_tokens=64, tile_rows=rows)
    surface = profile(FakeRunner(FakeMachine(), cost=tiled_ms), domain=domain, budget_s=1.0, held_out=0)
    beside = [(batch, 0, tokens) for batch, tokens in ((1, 16), (1, 17), (1, 33), (8, 3), (8, 5))]
    found = [surface.latency(*shape).ms for shape in beside]
    assert (found == pytest.approx([tiled_ms(shape) for shape in beside])) is (rows == 16)


def test_the_first_points_and_the_held_out_ones_are_all_measured() -> None:
    surface = profile(FakeRunner(FakeMachine()), held_out=5)
    timed = {(cell.batch, cell.context_tokens, cell.tokens) for cell in surface.measurements}
    assert set(DOMAIN.coarse()) <= timed
    assert sum(cell.purpose == "held-out" for cell in surface.measurements) == 5


def test_a_held_out_cell_does_not_change_the_surface_it_judges() -> None:
    surface = profile(
        FakeRunner(FakeMachine(), cost=edged_ms), domain=Domain(batches=(1,), contexts=(0,), most_tokens=64)
    )
    for held in surface.held_out():
        assert surface.latency(held.cell.batch, held.cell.context_tokens, held.cell.tokens).source == "interpolated"


@pytest.mark.parametrize("budget_s", [20.0, 60.0])
def test_a_noisy_machine_is_timed_for_the_budget_within_a_tenth(budget_s: float) -> None:
    noise = random.Random(1)
    machine = FakeMachine(disturbance=lambda _: noise.uniform(0.9, 1.1))
    profile(FakeRunner(machine), budget_s=budget_s)
    assert 0.9 * budget_s < machine.now_s() < 1.1 * budget_s


@pytest.mark.parametrize("times", [12.0, 4.0])
def test_timings_of_a_machine_that_is_disturbed_tenfold_are_refused_and_not_kept(times: float) -> None:
    sink = MemoryJournal()
    runner = FakeRunner(FakeMachine(disturbance=lambda call: times if call // 40 % 5 else 1.0))
    if times > MOST_DISTURBED:
        with pytest.raises(MeasurementError, match=r"took 12 times as long as its fast ones.*with --fresh"):
            profile(runner, sink=sink)
    else:
        profile(runner, sink=sink)
    assert bool(sink.surfaces) is (times < MOST_DISTURBED)


def test_a_quiet_machine_is_left_alone_once_all_is_known() -> None:
    machine = FakeMachine()
    profile(FakeRunner(machine), budget_s=600.0)
    assert machine.now_s() < 200.0


@pytest.mark.parametrize("budget_s", [0.01, 0.3])
def test_a_budget_too_small_for_the_first_points_times_them_all_the_same(budget_s: float) -> None:
    sink, machine = MemoryJournal(), FakeMachine()
    surface = profile(FakeRunner(machine), budget_s=budget_s, sink=sink)
    timed = {(cell.batch, cell.context_tokens, cell.tokens) for cell in surface.measurements}
    assert timed >= set(DOMAIN.coarse()) and sink.surfaces
    assert machine.now_s() > budget_s


class CompiledRunner(FakeRunner):
    """Forwards each of whose shapes takes 20 seconds once."""

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Call:
        shape, is_new = (batch, context_tokens, tokens), [True]

        def run() -> None:
            self.machine.time_ms_now += 20_000.0 * is_new[0]
            is_new[0] = False
            self._run(shape)

        return run


def counted(found: LatencySurface) -> list[tuple[int, int, int, int]]:
    """Return what was timed, and how often."""
    return [(cell.batch, cell.context_tokens, cell.tokens, len(cell.repeats_ms)) for cell in found.measurements]


def test_what_captured_shapes_take_once_is_no_part_of_the_budget() -> None:
    compiled = profile(CompiledRunner(FakeMachine(), regime=CAPTURED), budget_s=20.0)
    quick = profile(FakeRunner(FakeMachine(), regime=CAPTURED), budget_s=20.0)
    assert counted(compiled) == counted(quick)
    machine = FakeMachine()
    profile(CompiledRunner(machine), budget_s=20.0)
    assert machine.now_s() > 20.0 * len(list(DOMAIN.coarse()))  # of any other regime it is


class CompiledOnce(FakeRunner):
    """Forwards of which the first ever takes 20 seconds."""

    is_compiled = False

    def _run(self, shape: Shape) -> None:
        self.machine.time_ms_now += 0.0 if self.is_compiled else 20_000.0
        self.is_compiled = True
        super()._run(shape)


def test_what_a_model_s_first_forward_compiles_is_no_part_of_the_budget() -> None:
    compiled, quick = (profile(kind(FakeMachine()), budget_s=20.0) for kind in (CompiledOnce, FakeRunner))
    assert counted(compiled) == counted(quick)


def test_a_step_is_found_where_it_is() -> None:
    surface = profile(
        FakeRunner(FakeMachine(), cost=edged_ms), domain=Domain(batches=(1,), contexts=(0,), most_tokens=64)
    )
    assert [round(surface.latency(1, 0, tokens).ms, 6) for tokens in (22, 23)] == [5.0, 15.0]


def test_a_step_found_at_one_context_stands_at_every_other() -> None:
    domain = Domain(batches=(1,), contexts=(0, 400), most_tokens=64)
    surface = profile(FakeRunner(FakeMachine(), cost=edged_ms), domain=domain, budget_s=200.0)
    assert surface.latency(1, 300, 22).ms == pytest.approx(8.0)
    assert surface.latency(1, 300, 23).ms == pytest.approx(18.0)


def test_a_seed_repeats_the_session_call_by_call() -> None:
    machines = [FakeMachine(), FakeMachine(), FakeMachine()]
    for machine, seed in zip(machines, (7, 7, 8), strict=True):
        profile(FakeRunner(machine), seed=seed, budget_s=10.0)
    assert machines[0].log == machines[1].log != machines[2].log


def test_rounds_mix_the_cells_of_all_runners() -> None:
    machine, sink = FakeMachine(), KeptVisits()
    runners = [FakeRunner(machine), FakeRunner(machine, identity="other", role="draft")]
    measure(runners, [DOMAIN, DOMAIN], device=DEVICE, budget_s=20.0, sink=sink, session=TimingSettings(clock=machine))
    middle = [visit.surface for visit in sink.kept if visit.round == 4]
    assert {0, 1} <= set(middle) and middle != sorted(middle)


def test_slow_forwards_are_timed_for_the_budget_and_refined() -> None:
    noise = random.Random(1)
    machine = FakeMachine(disturbance=lambda _: noise.uniform(0.9, 1.1))
    domain = Domain(batches=(1,), contexts=(0,), most_tokens=64)
    runner = FakeRunner(machine, lambda shape: 100.0 * edged_ms(shape))
    surface = profile(runner, domain=domain, budget_s=240.0, held_out=0)
    assert 0.9 * 240.0 < machine.now_s() < 1.1 * 240.0
    assert len(surface.measurements) > len(list(domain.coarse())) + 3


def test_tenfold_outliers_and_a_wandering_speed_move_no_cell_by_much() -> None:
    noise = random.Random(5)

    def disturbed(call: int) -> float:
        wander = 1.0 + 0.3 * ((call // 50) % 3)
        return wander * (10.0 if noise.random() < 0.15 else noise.gauss(1.0, 0.01))

    surface = profile(FakeRunner(FakeMachine(disturbance=disturbed)), budget_s=120.0)
    scale = surface.latency(1, 0, 4).ms / smooth_ms((1, 0, 4))  # what a typical moment is, nobody can say
    found = [surface.latency(*shape).ms / scale for shape in DOMAIN.coarse()]
    assert found == pytest.approx([smooth_ms(shape) for shape in DOMAIN.coarse()], rel=0.03)


def test_a_machine_that_slows_down_for_a_while_is_seen_through() -> None:
    machine = FakeMachine(disturbance=lambda call: 2.0 if 120 <= call < 240 else 1.0)
    surface = profile(FakeRunner(machine), budget_s=60.0)
    found = [surface.latency(*shape).ms for shape in DOMAIN.coarse()]
    assert found == pytest.approx([smooth_ms(shape) for shape in DOMAIN.coarse()], rel=0.01)


@pytest.mark.parametrize("slow", range(4))
def test_a_mood_that_one_of_several_sittings_met_is_seen_through(slow: int) -> None:
    own, starts_s = wobble(7), slow * 15.0
    machine = FakeMachine(
        disturbance=lambda call: own(call) * (1.3 if starts_s <= machine.now_s() < starts_s + 15.0 else 1.0)
    )
    surface = profile(FakeRunner(machine), budget_s=60.0, sittings=(0.25, 0.5, 0.75, 1.0))
    found = [surface.latency(*shape).ms for shape in DOMAIN.coarse()]
    assert found == pytest.approx([smooth_ms(shape) for shape in DOMAIN.coarse()], rel=0.03)
    assert machine.now_s() == pytest.approx(60.0, rel=0.1)


def test_the_first_sitting_times_the_first_points_whatever_its_share() -> None:
    sink = KeptVisits()
    profile(FakeRunner(FakeMachine()), budget_s=0.5, sink=sink, sittings=(0.25, 1.0))
    short = FakeMachine(disturbance=wobble(1))
    measure(
        [FakeRunner(short)],
        [DOMAIN],
        device=DEVICE,
        budget_s=10.0,
        sink=sink,
        session=TimingSettings(clock=short, until=0.01),
    )
    timed = {(visit.batch, visit.context_tokens, visit.tokens) for visit in sink.kept}
    assert set(DOMAIN.coarse()) <= timed and short.now_s() < 9.0


def test_a_sitting_that_ends_at_no_share_of_the_budget_is_refused() -> None:
    for until in (0.0, 1.5):
        with pytest.raises(MeasurementError, match=f"share of the budget in .0, 1., got {until}; give 1 for all of it"):
            profile(FakeRunner(FakeMachine()), sittings=(until,))


def test_raw_repeats_are_stored_beside_their_drift_and_marked_where_disturbed() -> None:
    machine = FakeMachine(disturbance=lambda call: 2.0 if 120 <= call < 240 else 1.0)
    cells = profile(FakeRunner(machine), budget_s=60.0).measurements
    repeats = [
        (ms / cell.median_ms, off) for cell in cells for ms, off in zip(cell.repeats_ms, cell.disturbed, strict=True)
    ]
    assert any(off and ratio == pytest.approx(2.0) for ratio, off in repeats)
    assert sum(off for _, off in repeats) < len(repeats) / 2


def test_a_shape_that_cannot_run_is_data_and_the_others_go_on() -> None:
    surface = profile(FakeRunner(FakeMachine(), too_large=8), held_out=0)
    failures = {cell.tokens: cell.failure for cell in surface.measurements if cell.tokens in (1, 2, 4, 8, 16)}
    assert failures == {1: None, 2: None, 4: None, 8: "MemoryError: no room", 16: "MemoryError: no room"}


def test_no_shape_beyond_one_that_failed_is_tried() -> None:
    surface = profile(FakeRunner(FakeMachine(), too_large=8), held_out=0)
    assert {cell.tokens for cell in surface.measurements if cell.failure} == {8, 16}


def test_a_shape_that_breaks_later_is_a_failure_too() -> None:
    surface = profile(FakeRunner(FakeMachine(), breaks_at=60))
    broken = {cell.failure for cell in surface.measurements if cell.tokens == 8 and cell.purpose != "held-out"}
    assert broken == {"RuntimeError: broken"}


def drafter_beyond(machine: FakeMachine, sink: MemoryJournal) -> None:
    """Measure a target that runs and a drafter none of whose shapes do."""
    runners = [FakeRunner(machine), FakeRunner(machine, identity="small", role="draft", too_large=1)]
    measure(runners, [DOMAIN, DOMAIN], device=DEVICE, budget_s=100.0, sink=sink, session=TimingSettings(clock=machine))


def test_a_session_in_which_no_shape_of_a_runner_runs_ends_early_and_says_why() -> None:
    machine, sink = FakeMachine(), MemoryJournal()
    with pytest.raises(MeasurementError, match=r"draft of small.* \(1, 0, 1\): MemoryError: no room; ask for shorter"):
        drafter_beyond(machine, sink)
    assert machine.now_s() < 20.0 and sink.surfaces == ()


def test_a_session_that_could_not_run_is_refused_again_at_once() -> None:
    machine, sink = FakeMachine(), MemoryJournal()
    for here in (FakeMachine(), machine):
        with pytest.raises(MeasurementError, match="--fresh"):
            drafter_beyond(here, sink)
    assert machine.log == []


def test_the_sink_receives_the_surface_at_the_end() -> None:
    sink = MemoryJournal()
    surface = profile(FakeRunner(FakeMachine()), sink=sink)
    assert (sink.surfaces, sink.visits()) == ((surface,), [])
    assert (surface.device, surface.attention) == (DEVICE.fingerprint, "sdpa")


def test_an_interrupted_session_goes_on_with_every_call_it_had_timed() -> None:
    sink = KeptVisits()
    with pytest.raises(Interrupted, match="timed calls are kept"):
        profile(FakeRunner(FakeMachine(), stop_at=150), sink=sink, budget_s=20.0)
    before = sink.visits()
    surface = profile(FakeRunner(FakeMachine()), sink=sink, budget_s=20.0)
    kept = [ms for cell in surface.measurements for ms in cell.repeats_ms]
    assert len(before) > 20
    assert len(kept) == len(sink.kept) and sink.kept[: len(before)] == before


def test_an_interrupted_session_goes_on_with_what_is_left_of_its_budget() -> None:
    sink, first, second = MemoryJournal(), FakeMachine(disturbance=wobble(1)), FakeMachine(disturbance=wobble(2))
    with pytest.raises(Interrupted):
        profile(FakeRunner(first, stop_at=400), sink=sink, budget_s=30.0)
    profile(FakeRunner(second), sink=sink, budget_s=30.0)
    assert first.now_s() + second.now_s() == pytest.approx(30.0, rel=0.1)


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    profile(FakeRunner(FakeMachine(disturbance=wobble(3))), budget_s=10.0, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0, abs=0.1)


def test_runners_without_a_domain_are_refused() -> None:
    with pytest.raises(MeasurementError, match="1 runners but 0 domains"):
        measure([FakeRunner(FakeMachine())], [], device=DEVICE, budget_s=1.0, sink=MemoryJournal())


def test_two_runners_of_one_surface_are_refused() -> None:
    runner = FakeRunner(FakeMachine())
    with pytest.raises(MeasurementError, match="same surface"):
        measure([runner, runner], [DOMAIN, DOMAIN], device=DEVICE, budget_s=1.0, sink=MemoryJournal())


def wobble(seed: int) -> Disturbance:
    noise = random.Random(seed)
    return lambda _: noise.uniform(0.9, 1.1)
