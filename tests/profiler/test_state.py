"""How a device is doing, and what is said to have disturbed it between two moments."""

from __future__ import annotations

import ast
import os
import time
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from spectune.errors import DeviceError
from spectune.profiler import device, nvml
from spectune.profiler.device import detect
from spectune.profiler.nvml import reason_names, without_ours
from spectune.profiler.records.state import CpuTimes, DeviceState, OtherProcess
from spectune.profiler.records.wire import from_json, to_json
from spectune.profiler.state import (
    ProcessTimes,
    busiest,
    busy_processes,
    core_seconds,
    disturbances,
    family_of,
    process_times,
    read_state,
)

from ..support.fake_nvml import Gpu, Slice, install

QUIET = CpuTimes(cores=2, busy_s=100.0, stolen_s=1.0, own_pid=7, own_s=50.0, throttled=3, throttled_s=0.5)
CPU = DeviceState(device="d", read_at_s=1000.0, cpu=QUIET)
GPU = DeviceState(device="d", read_at_s=1000.0, throttle_reasons=("gpu_idle",), held_back_s=(("power limit", 5.0),))
OTHER = OtherProcess(pid=12, name="trainer", memory_bytes=3 * 2**30)


def later(state: DeviceState, **change: object) -> DeviceState:
    """Return a state ten seconds on."""
    return replace(state, read_at_s=state.read_at_s + 10.0, **change)  # type: ignore[arg-type]


def worked(**more: float) -> CpuTimes:
    """Return the times after ten seconds of our own work on both cores, and something more."""
    grown = {"busy_s": 120.0, "own_s": 70.0} | more
    return replace(QUIET, **grown)  # type: ignore[arg-type]


def process(pid: int, *, parent: int = 1, ticks: int = 0, started: int = 5) -> ProcessTimes:
    return ProcessTimes(pid=pid, name=f"job{pid}", parent=parent, started=started, ticks=ticks)


def test_a_cpu_is_read_by_the_process_that_asks() -> None:
    device = detect("cpu")
    state = read_state(device)
    assert state.cpu is not None
    assert (state.device, state.cpu.own_pid, state.cpu.cores) == (device.fingerprint, os.getpid(), device.cores)
    assert state.load_average is not None and abs(state.read_at_s - time.time()) < 60.0


def test_our_own_work_is_counted_as_ours() -> None:
    device = detect("cpu")
    before, end = read_state(device), time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = read_state(device)
    assert before.cpu is not None and after.cpu is not None
    assert after.cpu.own_s - before.cpu.own_s >= 0.2
    assert after.cpu.busy_s - before.cpu.busy_s >= 0.1  # the kernel counts it by sampling


@pytest.mark.parametrize("state", [later(CPU, processes=(OTHER,)), GPU])
def test_a_state_comes_back_equal(state: DeviceState) -> None:
    assert from_json(DeviceState, to_json(state)) == state


@pytest.mark.parametrize("change", [{"device": ""}, {"read_at_s": -1.0}])
def test_an_impossible_state_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DeviceError):
        replace(CPU, **change)  # type: ignore[arg-type]


def test_seconds_of_cores_leave_out_idle_time_and_other_cores() -> None:
    text = (
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 4000 50 6 7 8 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\ncpu10 9 9 9 9 9 9 9 9\n"
    )
    assert core_seconds(text, frozenset({0}), 100) == ((100 + 20 + 30 + 6 + 7) / 100, 8 / 100)


def test_every_process_is_read_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "41").mkdir()
    fields = "S 7 0 0 0 -1 0 1 0 0 0 250 50 0 0 20 0 1 0 8888 99 0"
    (tmp_path / "41/stat").write_text(f"41 (a) b (c) {fields}\n")
    (tmp_path / "self").mkdir()
    expected = ProcessTimes(pid=41, name="a) b (c", parent=7, started=8888, ticks=300)
    assert process_times(tmp_path) == [expected]


def test_this_process_is_among_those_of_the_machine() -> None:
    own = [each for each in process_times(Path("/proc")) if each.pid == os.getpid()]
    assert [each.parent for each in own] == [os.getppid()]


def test_a_system_without_proc_shows_no_processes(tmp_path: Path) -> None:
    assert busy_processes(tmp_path / "absent", window_s=0.0) == ()


def test_the_busiest_come_first_and_the_idle_not_at_all() -> None:
    first = [process(2, ticks=10), process(3, ticks=500), process(4, ticks=7)]
    last = [process(2, ticks=60), process(3, ticks=509), process(4, ticks=207)]
    assert [(each.pid, each.cores) for each in busiest(first, last, 100.0, frozenset())] == [(4, 2.0), (2, 0.5)]


def test_a_process_that_took_over_a_number_counts_from_its_own_beginning() -> None:
    found = busiest([process(2, ticks=900)], [process(2, ticks=50, started=6)], 100.0, frozenset())
    assert [each.cores for each in found] == [0.5]


def test_our_children_and_theirs_are_ours() -> None:
    tree = [process(10), process(11, parent=10), process(12, parent=11), process(13, parent=1)]
    assert family_of(10, tree) == {10, 11, 12}


def test_nothing_is_said_of_a_quiet_time() -> None:
    assert disturbances(CPU, later(CPU, cpu=worked())) == ()
    assert disturbances(GPU, later(GPU)) == ()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"busy_s": 135.0}, "other processes kept 1.50 of 2 cores busy"),
        ({"stolen_s": 2.0}, "the host of this virtual machine kept back 5% of its CPU time"),
        (
            {"throttled": 5, "throttled_s": 1.5},
            "throttled: the CPU quota stopped this process 2 times, 1.0 s of 10.0 s",
        ),
    ],
)
def test_what_took_the_processor_from_us_is_named(more: dict[str, float], sentence: str) -> None:
    assert disturbances(CPU, later(CPU, cpu=worked(**more))) == (sentence,)


def test_what_is_lost_in_noise_is_not_named() -> None:
    assert disturbances(CPU, later(CPU, cpu=worked(busy_s=120.3, stolen_s=1.3))) == ()


def test_another_reader_s_own_time_is_not_taken_for_ours() -> None:
    assert disturbances(CPU, later(CPU, cpu=worked(busy_s=135.0, own_pid=8))) == ()


def test_a_held_back_clock_is_named_with_its_share_of_the_time() -> None:
    after = later(GPU, held_back_s=(("power limit", 8.0), ("board limit", 99.0)))
    assert disturbances(GPU, after) == ("throttled: the power limit held the clocks back for 3.0 s of 10.0 s",)


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        ((), ("sw_power_cap",), "the end"),
        (("sw_power_cap",), (), "the start"),
        (("sw_power_cap",), ("sw_power_cap",), "the start and the end"),
    ],
)
def test_a_throttle_reason_is_named_with_where_it_was_seen(
    before: tuple[str, ...], after: tuple[str, ...], ends: str
) -> None:
    found = disturbances(replace(GPU, throttle_reasons=before), later(GPU, throttle_reasons=after))
    assert found == (f"throttled: sw_power_cap at {ends}",)


def test_another_process_is_named_once_as_it_was_last_seen() -> None:
    before = replace(GPU, processes=(replace(OTHER, memory_bytes=2**30),))
    sentence = "another process used the device: trainer (pid 12, 3.0 GiB)"
    assert disturbances(before, later(GPU, processes=(OTHER,))) == (sentence,)


def test_states_of_two_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match="two states of one device"):
        disturbances(CPU, later(CPU, device="e"))


def test_a_clock_that_was_set_back_is_said_and_stops_nothing() -> None:
    (sentence,) = disturbances(CPU, replace(CPU, read_at_s=1.0))
    assert "clock was set back" in sentence


def test_a_throttled_gpu_says_why_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    install(monkeypatch, Gpu(letter="a", reasons=mask, held_ns={pynvml.NVML_FI_DEV_PERF_POLICY_POWER: 2_500_000_000}))
    state = read_state(detect("cuda:0"))
    assert state.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert state.held_back_s == (("power limit", 2.5),)
    assert (state.clock_mhz, state.memory_clock_mhz, state.temperature_c, state.power_w) == (990, 1309, 41, 120.0)


def test_what_a_gpu_cannot_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu(letter="a", clocks_mhz=None, power_w=None, reasons=None))
    state = read_state(detect("cuda:0"))
    assert (state.clock_mhz, state.power_w, state.throttle_reasons, state.held_back_s) == (None, None, (), ())


def test_other_processes_of_a_gpu_are_listed_once_and_ours_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = OtherProcess(pid=os.getpid(), memory_bytes=2**30), OtherProcess(pid=4242, memory_bytes=2**31)
    install(monkeypatch, Gpu(letter="a", processes=[ours, other]))
    assert read_state(detect("cuda:0")).processes == (replace(other, name="job4242"),)


def test_a_slice_has_the_clocks_of_its_board(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu(letter="a", slices=[Slice(uuid="MIG-1")]))
    state = read_state(detect("cuda:0"))
    assert (state.clock_mhz, state.power_w) == (990, 120.0)


def test_a_gpu_that_has_gone_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu(letter="a"), Gpu(letter="b"))
    second = detect("cuda:1")
    install(monkeypatch, Gpu(letter="a"))
    with pytest.raises(DeviceError, match="no longer here"):
        read_state(second)


def test_a_gpu_without_uuid_is_found_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu(letter="a", power_w=10.0), Gpu(letter="b", power_w=20.0))
    assert read_state(replace(detect("cuda:1"), uuid=None)).power_w == 20.0


def test_a_reason_nobody_has_named_yet_is_shown_as_its_bit() -> None:
    assert reason_names(pynvml.nvmlClocksThrottleReasonSyncBoost | 1 << 40) == ("sync_boost", hex(1 << 40))


@pytest.mark.parametrize(
    ("own_bytes", "left"),
    [
        (2**30, [30]),  # inside a container: 20 is nearest to what we hold
        (None, [20, 30]),  # we do not use the GPU
    ],
)
def test_our_process_under_another_number_is_known_by_its_memory(own_bytes: int | None, left: list[int]) -> None:
    found = tuple(OtherProcess(pid=pid, memory_bytes=size) for pid, size in ((20, 3 * 2**29), (30, 2**34)))
    assert [each.pid for each in without_ours(found, own_pid=1, own_bytes=own_bytes)] == left


def test_where_our_number_is_listed_memory_is_not_asked() -> None:
    found = tuple(OtherProcess(pid=pid, memory_bytes=2**30) for pid in (1, 20))
    assert [each.pid for each in without_ours(found, own_pid=1, own_bytes=2**30)] == [20]


@pytest.mark.parametrize("module", [nvml, device])
def test_every_name_of_nvml_we_use_is_one_that_pynvml_has(module: object) -> None:
    tree = ast.parse(Path(module.__file__).read_text())  # type: ignore[attr-defined]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "pynvml"}
    assert used
    assert not [name for name in used if not hasattr(pynvml, name)]
