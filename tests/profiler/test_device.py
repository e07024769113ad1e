"""Detection, the lock and the clock of a device; GPUs are NVML's answers written down by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pynvml
import pytest
import torch

from spectune.errors import DeviceError
from spectune.profiler import cpu as cpu_module
from spectune.profiler.clock import CudaClock, HostClock, clock_in, clock_of
from spectune.profiler.cpu import processor_here
from spectune.profiler.device import detect, detect_all
from spectune.profiler.lock import device_lock
from spectune.profiler.records.device import Device
from spectune.profiler.records.role import CAPTURED

from ..support.fake_nvml import Gpu, Slice, error, install

CPU = Device(kind="cpu", name="Test", index=0, memory_bytes=1, cores=1, threads=1)
GPU = Device(kind="cuda", name="Test", index=2, memory_bytes=1, uuid="GPU-1")
HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); "


@pytest.mark.parametrize(
    ("isa", "native"),
    [
        (("avx2", "fma"), "float32"),
        (("avx2", "avx512f", "avx512_bf16"), "bfloat16"),
        (("amx_tile", "amx_bf16"), "bfloat16"),
        (("asimd", "bf16"), "bfloat16"),
        (("asimd",), "float32"),
        ((), "bfloat16"),
    ],
)
def test_a_cpu_known_to_lack_bfloat16_computes_in_float32(isa: tuple[str, ...], native: str) -> None:
    here = replace(CPU, isa=isa)
    assert here.native_dtype == here.dtype_for("auto") == native
    assert here.dtype_for("float64") == "float64"


def test_a_matrix_unit_takes_rows_at_once_in_its_own_format_alone() -> None:
    unit = replace(CPU, isa=("avx512_bf16", "amx_tile", "amx_bf16"))
    assert [unit.tile_rows(dtype) for dtype in ("auto", "bfloat16", "float32")] == [16, 16, 0]
    assert [replace(CPU, isa=("avx512_bf16",)).tile_rows(dtype) for dtype in ("bfloat16", "float32")] == [8, 0]
    assert GPU.tile_rows("bfloat16") == 0


@pytest.mark.parametrize(("capability", "native"), [("7.5", "float16"), ("8.0", "bfloat16"), ("12.0", "bfloat16")])
def test_a_gpu_before_ampere_computes_in_float16(capability: str, native: str) -> None:
    assert replace(GPU, compute_capability=capability).native_dtype == native


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu(letter="a"), Gpu(letter="b", power_limit_w=None, clocks_mhz=None))


def test_this_cpu_is_described_by_what_the_process_may_use() -> None:
    device = detect("cpu")
    assert device.cores == len(os.sched_getaffinity(0))
    assert device.threads == torch.get_num_threads()
    assert dict(device.libraries)["python"] == sys.version.split()[0]
    assert {"numba", "spectune's forwards"} < set(dict(device.libraries))  # they compute forwards, too


def test_what_other_forwards_of_ours_took_is_found_under_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those by a unit for matrices have become faster on their own."""
    found: dict[bool, str] = {}
    for has_unit in (False, True):
        isa = ("avx512_bf16", "amx_bf16") if has_unit else ("avx512_bf16",)
        told = replace(processor_here(), isa=isa)
        monkeypatch.setattr(cpu_module, "processor_here", lambda told=told: told)
        found[has_unit] = dict(detect("cpu").libraries)["spectune's forwards"]
    assert found[False] != found[True]


def test_every_machine_has_a_cpu_and_lists_it_last() -> None:
    assert detect_all()[-1] == detect("cpu")


def test_a_device_found_twice_is_the_same_device() -> None:
    assert detect("auto").fingerprint == detect("auto").fingerprint


@pytest.mark.parametrize("spec", ["tpu", "cuda:", "cuda:x", "", "cpu:0"])
def test_an_unknown_device_is_refused_with_the_names_there_are(spec: str) -> None:
    with pytest.raises(DeviceError, match="'cpu' or 'cuda:N'"):
        detect(spec)


@pytest.mark.usefixtures("two_gpus")
def test_an_absent_gpu_is_refused_with_those_that_are_here() -> None:
    with pytest.raises(DeviceError, match=r"Test a \(cuda:0, 80 GiB\), Test b"):
        detect("cuda:2")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_is_described_by_its_driver() -> None:
    gpu = detect("cuda:0")
    assert detect("cuda") == gpu
    assert (gpu.name, gpu.uuid, gpu.memory_bytes, gpu.compute_capability) == ("Test a", "GPU-a", 80 * 2**30, "9.0")
    assert (gpu.driver, gpu.cuda, gpu.power_limit_w) == ("999.1", "12.8", 700.0)
    assert (gpu.max_sm_clock_mhz, gpu.max_memory_clock_mhz, gpu.mig_profile) == (1980, 2619, None)


@pytest.mark.usefixtures("two_gpus")
def test_a_reading_that_a_gpu_does_not_support_is_none() -> None:
    gpu = detect("cuda:1")
    assert (gpu.name, gpu.power_limit_w, gpu.max_sm_clock_mhz) == ("Test b", None, None)


@pytest.mark.parametrize(
    ("name", "profile"),
    [("Test a MIG 1g.10gb", "1g.10gb"), ("Test a", "1 of 2 slices, 16 SMs, 9984 MiB")],
)
def test_a_divided_gpu_is_its_slices_under_the_limits_of_their_board(
    monkeypatch: pytest.MonkeyPatch, name: str, profile: str
) -> None:
    slices = [Slice(uuid="MIG-1", name=name), Slice(uuid="MIG-2", name=name)]
    install(monkeypatch, Gpu(letter="a", slices=slices), Gpu(letter="b"))
    first, second, whole = detect_all()[:-1]
    assert (first.uuid, second.uuid, whole.uuid) == ("MIG-1", "MIG-2", "GPU-b")
    assert (first.mig_profile, first.memory_bytes, first.power_limit_w) == (profile, 10 * 2**30, 700.0)


def test_one_slice_can_be_named_as_the_visible_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu(letter="a", slices=[Slice(uuid="MIG-1"), Slice(uuid="MIG-2")]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2")
    assert [device.uuid for device in detect_all()[:-1]] == ["MIG-2"]


def test_a_divided_gpu_without_slices_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Gpu(letter="a", slices=[]))
    assert [device.kind for device in detect_all()] == ["cpu"]


@pytest.mark.usefixtures("two_gpus")
def test_a_lost_gpu_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(handle: object) -> str:
        raise error(pynvml.NVML_ERROR_GPU_IS_LOST)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lost)
    with pytest.raises(DeviceError, match="GPU is lost"):
        detect_all()


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("visible", "uuids"), [("1,0", ["b", "a"]), ("GPU-b", ["b"]), ("", []), ("-1", [])])
def test_gpus_are_counted_within_the_visible_ones(
    monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.uuid for device in detect_all()[:-1]] == [f"GPU-{uuid}" for uuid in uuids]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("visible", "is_known"), [("GPU-b", True), ("1", False), (None, False)])
def test_a_number_among_gpus_of_several_models_is_refused_unless_the_order_is_known(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, is_known: bool
) -> None:
    assert detect("cuda:1").uuid == "GPU-b"
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if is_known:
        assert detect("cuda:0").uuid == "GPU-b"
    else:
        with pytest.raises(DeviceError, match=r"several models \(Test a, Test b\).*set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            detect("cuda:0")
    assert detect("cpu").kind == "cpu" and len(detect_all()) >= 2


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


def test_captured_forwards_alone_are_timed_behind_other_work_and_on_a_gpu_alone() -> None:
    idle, host = clock_of(GPU), clock_of(CPU)
    busy = clock_in(idle, CAPTURED)
    assert isinstance(busy, CudaClock) and (busy.index, busy.is_busy) == (2, True)
    assert clock_in(idle, "eager") is idle and clock_in(host, CAPTURED) is host


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_busy_clock_gives_the_gpu_work_right_before_the_first_event(is_busy: bool) -> None:
    order: list[str] = []
    event = mock.Mock(**{"elapsed_time.return_value": 2.0})
    event.record.side_effect = lambda: order.append("event")
    stand_ins: dict[str, Any] = {
        "Event": lambda **_: event,
        "synchronize": lambda: order.append("waited"),
        "_sleep": lambda cycles: order.append("busy"),
        "device": lambda index: nullcontext(),
    }
    with mock.patch.multiple(torch.cuda, **stand_ins):
        assert CudaClock(0, is_busy=is_busy).time_ms(lambda: order.append("call")) == 2.0
    assert order == ["waited", *(["busy"] if is_busy else []), "event", "call", "event"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
def test_the_cuda_clock_waits_for_the_kernels() -> None:
    large = torch.randn(8192, 8192, device="cuda")

    def multiply() -> None:
        for _ in range(10):
            torch.mm(large, large)

    assert CudaClock(0).time_ms(multiply) > 10 * 2 * 8192**3 / 2e15 * 1e3  # no GPU does 2 PFLOP/s in float32
