"""Memory bandwidth: what is counted, and that it is measured once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spectune.errors import DeviceError, MeasurementError
from spectune.profiler.bandwidth import known_bandwidth, memory_bandwidth, remember_bandwidth
from spectune.profiler.device import detect
from spectune.profiler.records.ceilings import Bandwidth
from spectune.profiler.records.device import Device
from spectune.profiler.remembered import cache_folder

MIB = 2**20
MEASURED = Bandwidth(device="d", moved_bytes=3_000_000, repeats_ms=(2.0, 1.0, 4.0))


class StandingClock:
    """Runs every call, says that each took two milliseconds, and never moves on."""

    calls = 0

    def now_s(self) -> float:
        return 0.0

    def time_ms(self, call: Callable[[], None]) -> float:
        call()
        self.calls += 1
        return 2.0


class SlowClock(StandingClock):
    """A second passes with every call."""

    def now_s(self) -> float:
        return float(self.calls)


@pytest.fixture
def small() -> Device:
    """Return this CPU as if it had so little memory that its arrays are of 1 MiB."""
    return replace(detect("cpu"), memory_bytes=24 * MIB)


def test_the_best_pass_is_the_bandwidth() -> None:
    assert (MEASURED.bytes_per_s, MEASURED.median_bytes_per_s) == (3e9, 1.5e9)


def test_a_pass_moves_two_arrays_read_and_one_written(small: Device) -> None:
    found = memory_bandwidth(small, StandingClock())
    assert found.moved_bytes == 3 * MIB
    assert found.bytes_per_s == pytest.approx(3 * MIB / 0.002)
    assert found.device == small.fingerprint


def test_a_slow_device_is_measured_a_few_times_and_a_fast_one_often(small: Device) -> None:
    assert len(memory_bandwidth(small, SlowClock()).repeats_ms) == 5
    assert len(memory_bandwidth(small, StandingClock()).repeats_ms) == 200


def test_a_gpu_torch_cannot_use_is_our_error() -> None:
    with pytest.raises(DeviceError):
        memory_bandwidth(Device(kind="cuda", name="Absent", index=99, memory_bytes=MIB, uuid="GPU-none"))


@pytest.mark.parametrize("change", [{"device": ""}, {"moved_bytes": 0}, {"repeats_ms": ()}, {"repeats_ms": (0.0,)}])
def test_an_impossible_bandwidth_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MeasurementError):
        replace(MEASURED, **change)  # type: ignore[arg-type]


def test_a_bandwidth_is_remembered_for_exactly_its_device(small: Device, tmp_path: Path) -> None:
    measured = replace(MEASURED, device=small.fingerprint)
    file = remember_bandwidth(small, measured, tmp_path / "new")
    assert known_bandwidth(small, tmp_path / "new") == measured
    assert known_bandwidth(replace(small, threads=99), tmp_path / "new") is None
    assert list(file.parent.iterdir()) == [file]


def test_what_was_remembered_for_another_device_is_not_believed(small: Device, tmp_path: Path) -> None:
    remember_bandwidth(small, MEASURED, tmp_path)
    assert known_bandwidth(small, tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", '{"device":"d","moved_bytes":0,"repeats_ms":[1.0]}'])
def test_a_damaged_memory_is_as_none(small: Device, tmp_path: Path, text: str) -> None:
    remember_bandwidth(small, MEASURED, tmp_path).write_text(text)
    assert known_bandwidth(small, tmp_path) is None


def test_a_folder_that_cannot_be_written_is_our_error(small: Device, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="set SPECTUNE_CACHE"):
        remember_bandwidth(small, MEASURED, tmp_path / "file")


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECTUNE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SPECTUNE_CACHE")
    assert cache_folder().name == "spectune"
