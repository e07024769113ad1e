from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spectune.errors import DeviceError, MeasurementError
from spectune.profiler.catalogue import catalogued
from spectune.profiler.ceilings import (
    known_ceilings,
    limits_here,
    measure_ceilings,
    peak_flops,
    read_speeds,
    remember_ceilings,
)
from spectune.profiler.clock import Call
from spectune.profiler.device import detect
from spectune.profiler.records.ceilings import PeakRates, ProductTiming, ReadTiming
from spectune.profiler.records.device import Device
from spectune.profiler.records.limits import DeviceLimits, ReadSpeed
from spectune.profiler.records.wire import from_json, to_json

MIB = 2**20
DEVICE = Device(kind="cpu", name="Test", index=0, memory_bytes=2**30, cores=1, threads=1)


@dataclass
class SteadyClock:
    """Runs every call and says that it was long, so that no larger size is tried and the budget ends at once."""

    timed: list[Call] = field(default_factory=list)

    def now_s(self) -> float:
        return float(len(self.timed))

    def time_ms(self, call: Call) -> float:
        call()
        self.timed.append(call)
        return 50.0


def limits(*reads: tuple[int, float], cache_mib: int = 0) -> DeviceLimits:
    return DeviceLimits(
        name="test",
        origin="measured",
        memory_bytes=2**30,
        reads=tuple(ReadSpeed(footprint_bytes=size * MIB, bytes_per_s=speed * MIB) for size, speed in reads),
        cache_bytes=cache_mib * MIB,
        flops_per_s=(("float32", 1e9),),
    )


def ceilings(read_ms: float, product_ms: float, footprint: int = MIB, size: int = 512) -> PeakRates:
    return PeakRates(
        device=DEVICE.fingerprint,
        reads=(ReadTiming(footprint_bytes=footprint, repeats_ms=(2 * read_ms, read_ms)),),
        products=(ProductTiming(dtype="float32", size=size, repeats_ms=(product_ms, 3 * product_ms)),),
    )


def test_a_footprint_is_read_at_the_speed_of_the_largest_known_one_it_holds():
    measured = limits((1, 100), (4, 50), (16, 20))
    assert [measured.read_ms(size * MIB) for size in (1, 3, 4, 100)] == pytest.approx([10, 30, 80, 5000])


def test_a_footprint_smaller_than_all_known_ones_takes_no_time():
    assert limits((2, 100)).read_ms(MIB) == 0.0


def test_a_footprint_is_read_no_slower_than_a_larger_one_was():
    assert limits((1, 30), (4, 50)).read_ms(2 * MIB) == pytest.approx(40.0)


def test_of_a_footprint_only_what_exceeds_the_cache_comes_from_memory():
    device = limits((0, 10), cache_mib=50)
    assert [device.read_ms(size * MIB) for size in (40, 50, 60)] == pytest.approx([0, 0, 1000])


def test_reading_more_never_takes_less_time():
    measured = limits((1, 100), (2, 120), (4, 50), (8, 55), (16, 20))
    times = [measured.read_ms(size * MIB / 4) for size in range(4, 100)]
    assert times == sorted(times)


def test_operations_of_unknown_speed_take_no_time():
    assert limits((1, 1)).compute_ms(1e9, "float32") == pytest.approx(1000.0)
    assert limits((1, 1)).compute_ms(1e9, "bfloat16") == 0.0


@pytest.mark.parametrize("reads", [(), ((4, 1), (1, 1)), ((1, 1), (1, 2))])
def test_limits_need_reading_speeds_by_ascending_footprint(reads):
    with pytest.raises(DeviceError, match="ascending"):
        limits(*reads)


def test_the_fastest_repeat_of_the_fastest_size_is_the_peak():
    both = ceilings(1.0, 4.0).joined(ceilings(1.0, 16.0, size=1024))
    assert both.flops_per_s("float32") == pytest.approx(2 * 1024**3 / 16e-3)


def test_a_format_that_was_not_timed_has_no_peak():
    with pytest.raises(MeasurementError, match="bfloat16"):
        ceilings(1.0, 1.0).flops_per_s("bfloat16")


def test_of_two_measurements_the_better_one_is_kept_size_by_size():
    both = ceilings(1.0, 4.0).joined(ceilings(2.0, 3.0)).joined(ceilings(5.0, 5.0, footprint=4 * MIB))
    assert [read.bytes_per_s / MIB for read in both.reads] == pytest.approx([1000.0, 800.0])
    assert [product.repeats_ms for product in both.products] == [(3.0, 9.0)]


def test_measurements_of_different_devices_do_not_join():
    other = PeakRates(device="0" * 16, reads=(), products=())
    with pytest.raises(MeasurementError, match="do not belong together"):
        ceilings(1.0, 1.0).joined(other)


def test_what_is_remembered_is_never_worsened(tmp_path: Path):
    assert known_ceilings(DEVICE, tmp_path) is None
    remember_ceilings(DEVICE, ceilings(1.0, 1.0), tmp_path)
    assert remember_ceilings(DEVICE, ceilings(2.0, 2.0), tmp_path) == known_ceilings(DEVICE, tmp_path)
    assert known_ceilings(DEVICE, tmp_path) == ceilings(1.0, 1.0)


def test_a_damaged_memory_is_measured_anew(tmp_path: Path):
    remember_ceilings(DEVICE, ceilings(1.0, 1.0), tmp_path)
    for file in tmp_path.iterdir():
        file.write_text("{")
    assert known_ceilings(DEVICE, tmp_path) is None


def test_ceilings_survive_the_wire():
    assert from_json(PeakRates, to_json(ceilings(1.0, 2.0))) == ceilings(1.0, 2.0)


def test_a_catalogued_device_reads_no_slower_than_its_memory_is_published():
    here = Device(kind="cuda", name="NVIDIA H200", index=0, memory_bytes=2**37)
    slow = PeakRates(device=here.fingerprint, reads=ceilings(1.0, 1.0).reads, products=())
    assert limits_here(here, slow).read_ms(2**30) == pytest.approx(2**30 / 4.8e12 * 1e3)
    assert limits_here(here, slow).flops_per_s == catalogued("H200").limits.flops_per_s


def test_a_device_nobody_published_has_the_limits_that_were_measured():
    assert limits_here(DEVICE, ceilings(1.0, 1.0)) == ceilings(1.0, 1.0).limits(DEVICE)


def test_measuring_visits_sizes_in_turns_and_keeps_every_repeat():
    clock = SteadyClock()
    reads = read_speeds(DEVICE, clock)
    assert {len(read.repeats_ms) for read in reads} == {5}
    assert [read.footprint_bytes for read in reads] == sorted({read.footprint_bytes for read in reads})
    turns = [clock.timed[start : start + len(reads)] for start in range(0, len(clock.timed), len(reads))]
    assert all(turn == turns[0] for turn in turns)


def test_this_machine_reads_and_multiplies_at_a_finite_speed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spectune.profiler.ceilings.last_level_cache_bytes", lambda cores: 2**20)  # some have 480 MiB
    device = detect("cpu")
    seen = measure_ceilings(device, "float32", SteadyClock())
    assert seen.device == device.fingerprint
    assert seen.limits(device).compute_ms(1e9, "float32") > 0.0


def test_a_format_torch_cannot_multiply_is_told():
    with pytest.raises(DeviceError, match="int3"):
        peak_flops(detect("cpu"), "int3", SteadyClock())
