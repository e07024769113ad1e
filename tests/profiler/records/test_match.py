"""How near two devices are: graded, with every difference named."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from spectune.errors import DeviceError
from spectune.profiler.records.device import Device
from spectune.profiler.records.match import DeviceMatch, Difference, match_devices, nearest
from spectune.profiler.records.wire import from_json, to_json

CPU = Device(
    kind="cpu", name="Test CPU", index=0, memory_bytes=2**34, cores=4, threads=2, isa=("avx2",), sockets=1,
    libraries=(("python", "3.11"), ("torch", "2.12")),
)  # fmt: skip
GPU = Device(
    kind="cuda", name="Test GPU", index=0, memory_bytes=2**36, uuid="GPU-1", power_limit_w=700.0, driver="1",
    cuda="12.8", compute_capability="9.0", max_sm_clock_mhz=1980, max_memory_clock_mhz=2619,
)  # fmt: skip
SETTINGS: list[tuple[Device, dict[str, object], str]] = [  # what leaves the hardware as it is
    (CPU, {"threads": 1}, "threads 1 instead of 2"),
    (CPU, {"libraries": (("python", "3.11"), ("torch", "2.13"))}, "torch 2.13 instead of 2.12"),
    (CPU, {"libraries": (("python", "3.11"),)}, "torch none instead of 2.12"),
    (GPU, {"power_limit_w": 500.0}, "power limit (W) 500 instead of 700"),
    (GPU, {"power_limit_w": None}, "power limit (W) none instead of 700"),
    (GPU, {"driver": "2"}, "driver 2 instead of 1"),
    (GPU, {"cuda": "13.0"}, "CUDA of the driver 13.0 instead of 12.8"),
    (GPU, {"max_sm_clock_mhz": 1700}, "maximum SM clock (MHz) 1700 instead of 1980"),
    (GPU, {"max_memory_clock_mhz": 2000}, "maximum memory clock (MHz) 2000 instead of 2619"),
    (GPU, {"uuid": "GPU-2"}, "board GPU-2 instead of GPU-1"),
]
HARDWARE: list[tuple[Device, dict[str, object], str]] = [
    (CPU, {"name": "Other"}, "name Other instead of Test CPU"),
    (CPU, {"memory_bytes": 2**35}, "memory (GiB) 32 instead of 16"),
    (CPU, {"cores": 2}, "cores 2 instead of 4"),
    (CPU, {"cpu_quota": 1.5}, "CPU quota (cores) 1.5 instead of none"),
    (CPU, {"sockets": 2}, "sockets 2 instead of 1"),
    (CPU, {"isa": ("avx2", "avx512f")}, "vector extensions avx2 avx512f instead of avx2"),
    (GPU, {"compute_capability": "10.0"}, "compute capability 10.0 instead of 9.0"),
    (GPU, {"mig_profile": "1g.10gb"}, "MIG profile 1g.10gb instead of none"),
]


def difference(aspect: str) -> Difference:
    return Difference(aspect=aspect, field="it", wanted="1", seen="2")  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_device_is_the_same_as_itself_read_back(device: Device) -> None:
    match = match_devices(device, from_json(Device, to_json(device)))
    assert (match.grade, match.differences) == ("same", ())


@pytest.mark.parametrize(("device", "change", "words"), SETTINGS)
def test_other_settings_or_versions_are_the_same_kind(device: Device, change: dict[str, object], words: str) -> None:
    match = match_devices(device, replace(device, **change))  # type: ignore[arg-type]
    assert (match.grade, str(match)) == ("same-kind", words)


@pytest.mark.parametrize(("device", "change", "words"), HARDWARE)
def test_other_hardware_is_another_device(device: Device, change: dict[str, object], words: str) -> None:
    match = match_devices(device, replace(device, **change))  # type: ignore[arg-type]
    assert (match.grade, str(match)) == ("other", words)


def test_every_field_of_a_device_is_graded() -> None:
    changed = {name for _, change, _ in SETTINGS + HARDWARE for name in change}
    assert {field.name for field in fields(Device)} - changed == {"kind", "index"}  # those have tests of their own


def test_a_cpu_and_a_gpu_differ_in_kind() -> None:
    match = match_devices(CPU, GPU)
    assert match.grade == "other"
    assert "kind cuda instead of cpu" in str(match)


def test_a_gpu_without_uuid_is_known_by_its_index() -> None:
    match = match_devices(replace(GPU, uuid=None), replace(GPU, uuid=None, index=1))
    assert (match.grade, str(match)) == ("same-kind", "board cuda:1 instead of cuda:0")


def test_what_was_not_known_of_an_older_record_is_no_other_hardware() -> None:
    older = replace(GPU, max_sm_clock_mhz=None, max_memory_clock_mhz=None)
    assert match_devices(GPU, older).grade == "same-kind"
    assert match_devices(CPU, replace(CPU, sockets=None)).grade == "same"


def test_a_record_of_the_first_version_is_still_read_and_keeps_its_keys() -> None:
    text = (
        '{"kind":"cpu","name":"Test CPU","index":0,"memory_bytes":17179869184,"uuid":null,"cores":4,"threads":2,'
        '"isa":["avx2"],"compute_capability":null,"driver":null,"cuda":null,"power_limit_w":null,'
        '"libraries":[["torch","2.12"]]}'
    )
    device = from_json(Device, text)
    assert (device.kind_key, device.fingerprint) == ("7e46a52c43619d8b", "4d3fbc89613d5ac6")


def test_the_same_board_is_nearest_whatever_comes_first() -> None:
    assert nearest(GPU, [replace(GPU, driver="2"), GPU, CPU]) is GPU


def test_the_same_kind_is_nearer_than_another_device_with_fewer_differences() -> None:
    kin = replace(CPU, threads=4, libraries=(("python", "3.12"), ("torch", "2.13")))
    assert nearest(CPU, [replace(CPU, cores=8), kin]) is kin


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        (["version", "version"], ["setting"]),
        (["board"], ["version"]),
        (["version"], ["version", "board"]),
        (["setting"], ["setting", "setting"]),
    ],
)
def test_settings_count_before_versions_and_versions_before_the_board(nearer: list[str], farther: list[str]) -> None:
    near, far = (
        DeviceMatch(grade="same-kind", differences=tuple(difference(aspect) for aspect in aspects))
        for aspects in (nearer, farther)
    )
    assert near.distance < far.distance


def test_among_equals_the_first_is_nearest_and_among_none_there_is_none() -> None:
    twins = [replace(GPU, uuid="GPU-2"), replace(GPU, uuid="GPU-3")]
    assert nearest(GPU, twins) is twins[0]
    assert nearest(GPU, []) is None


@pytest.mark.parametrize(("grade", "differences"), [("same", (difference("board"),)), ("same-kind", ()), ("other", ())])
def test_a_match_that_hides_a_difference_is_refused(grade: str, differences: tuple[Difference, ...]) -> None:
    with pytest.raises(DeviceError, match="differences"):
        DeviceMatch(grade=grade, differences=differences)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"sockets": 0}, {"cpu_quota": 0.0}, {"power_limit_w": -1.0}, {"max_sm_clock_mhz": 0}]
)
def test_an_impossible_amount_of_a_device_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DeviceError, match="above 0 or None"):
        replace(CPU, **change)  # type: ignore[arg-type]
