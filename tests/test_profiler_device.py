"""Detection, the lock and the clock of a device; the GPU is NVML's answers written down by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import spectune.profiler.device
from spectune.errors import DeviceError
from spectune.profiler.clock import CudaClock, HostClock, clock_of
from spectune.profiler.device import detect, detect_all, read_cpuinfo
from spectune.profiler.lock import device_lock
from spectune.profiler.records.device import Device

CPU = Device(kind="cpu", name="Test", index=0, memory_bytes=1, cores=1, threads=1)
GPU = Device(kind="cuda", name="Test", index=2, memory_bytes=1, uuid="GPU-1")
HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); "


class NVMLError(Exception):
    """NVML's base error, and all of its errors here."""


def fake_nvml(names: list[str]) -> SimpleNamespace:
    """Return a stand-in for the third-party module `pynvml` on a machine with these GPUs."""
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVMLError_LibraryNotFound=type("NVMLError_LibraryNotFound", (NVMLError,), {}),
        NVMLError_DriverNotLoaded=type("NVMLError_DriverNotLoaded", (NVMLError,), {}),
        NVMLError_NotSupported=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: names[index],
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid.removeprefix("GPU-"),
        nvmlDeviceGetName=lambda handle: f"Test {handle}",
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}",
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=80 * 2**30),
        nvmlDeviceGetCudaComputeCapability=lambda _: (9, 0),
        nvmlSystemGetDriverVersion=lambda: "999.1",
        nvmlSystemGetCudaDriverVersion=lambda: 12080,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
    )


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectune.profiler.device, "pynvml", fake_nvml(["a", "b"]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_this_cpu_is_described_by_what_the_process_may_use() -> None:
    device = detect("cpu")
    assert device.cores == len(os.sched_getaffinity(0))
    assert device.threads == torch.get_num_threads()
    assert dict(device.libraries)["python"] == sys.version.split()[0]


def test_every_machine_has_a_cpu_and_lists_it_last() -> None:
    assert detect_all()[-1] == detect("cpu")


def test_a_device_found_twice_is_the_same_device() -> None:
    assert detect("auto").fingerprint == detect("auto").fingerprint


@pytest.mark.parametrize("spec", ["tpu", "cuda", "cuda:x", "", "cpu:0"])
def test_an_unknown_device_is_refused_with_the_names_there_are(spec: str) -> None:
    with pytest.raises(DeviceError, match="'cpu' or 'cuda:N'"):
        detect(spec)


@pytest.mark.usefixtures("two_gpus")
def test_an_absent_gpu_is_refused_with_those_that_are_here() -> None:
    with pytest.raises(DeviceError, match=r"Test a \(cuda:0, 80 GiB\), Test b"):
        detect("cuda:2")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_is_described_by_its_driver() -> None:
    gpu = detect("cuda:1")
    assert (gpu.name, gpu.uuid, gpu.memory_bytes, gpu.compute_capability) == ("Test b", "GPU-b", 80 * 2**30, "9.0")
    assert (gpu.driver, gpu.cuda, gpu.power_limit_w) == ("999.1", "12.8", 700.0)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("visible", "uuids"), [("1,0", ["b", "a"]), ("GPU-b", ["b"]), ("", []), ("-1", [])])
def test_gpus_are_counted_within_the_visible_ones(
    monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.uuid for device in detect_all()[:-1]] == [f"GPU-{uuid}" for uuid in uuids]


@pytest.mark.usefixtures("two_gpus")
def test_a_shortened_uuid_among_the_visible_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "first")
    with pytest.raises(DeviceError, match="'first'"):
        detect_all()


@pytest.mark.parametrize(("cuda", "kind"), [(None, "cpu"), ("12.8", "cuda")])
@pytest.mark.usefixtures("two_gpus")
def test_auto_takes_a_gpu_only_where_torch_can_use_it(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, kind: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert detect("auto").kind == kind


def test_an_x86_processor_is_read_from_its_flags() -> None:
    text = "model name\t: Test CPU\nflags\t\t: sse avx512_bf16 avx2\n\nmodel name\t: Second\nflags\t\t: sse\n"
    assert read_cpuinfo(text) == ("Test CPU", ("avx2", "avx512_bf16"))


def test_an_arm_processor_is_read_from_its_features() -> None:
    text = "processor\t: 0\nFeatures\t: fp asimd bf16 sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    assert read_cpuinfo(text) == ("CPU implementer 0x41 CPU part 0xd40", ("asimd", "bf16", "sve"))


def test_a_held_device_names_the_process_that_holds_it(tmp_path: Path) -> None:
    second = device_lock(CPU, tmp_path)
    with device_lock(CPU, tmp_path), pytest.raises(DeviceError, match=f"process {os.getpid()} "), second:
        pass


def test_a_device_held_by_another_process_is_refused_until_that_ends(tmp_path: Path) -> None:
    with device_lock(CPU, tmp_path) as path:
        pass
    command = [sys.executable, "-c", HOLD + "time.sleep(60)", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DeviceError, match="being measured"), device_lock(CPU, tmp_path):
            pass
        other.kill()
    with device_lock(CPU, tmp_path):
        pass


def test_a_device_is_free_again_after_its_block_failed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), device_lock(CPU, tmp_path):
        _ = 1 // 0
    with device_lock(CPU, tmp_path) as path:
        assert path.read_text() == str(os.getpid())


def test_two_devices_are_locked_apart(tmp_path: Path) -> None:
    with device_lock(CPU, tmp_path / "new"), device_lock(GPU, tmp_path / "new"):
        assert len(list((tmp_path / "new").iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="cannot write the lock"), device_lock(CPU, tmp_path / "file"):
        pass


def test_the_host_clock_agrees_with_a_known_wait() -> None:
    assert 20.0 <= HostClock().time_ms(lambda: time.sleep(0.02)) < 2000.0


def test_each_kind_of_device_has_its_clock() -> None:
    gpu_clock = clock_of(GPU)
    assert isinstance(gpu_clock, CudaClock)
    assert gpu_clock.index == 2
    assert type(clock_of(CPU)) is HostClock


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
def test_the_cuda_clock_waits_for_the_kernels() -> None:
    large = torch.randn(8192, 8192, device="cuda")

    def multiply() -> None:
        for _ in range(10):
            torch.mm(large, large)

    assert CudaClock(0).time_ms(multiply) > 10 * 2 * 8192**3 / 2e15 * 1e3  # no GPU does 2 PFLOP/s in float32
