"""NVIDIA's driver written down by hand: what the third-party module `pynvml` answers on machines we do not have."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from spectune.profiler.records.state import OtherProcess

SM, MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM


@dataclass(eq=False, kw_only=True)
class Slice:
    """A part of a GPU that MIG made; its board answers for power, clocks and temperature."""

    uuid: str
    name: str = "Test a MIG 1g.10gb"
    memory_gib: int = 10


@dataclass(eq=False, kw_only=True)
class Gpu:
    """A GPU; what is None here is not supported there."""

    letter: str
    memory_gib: int = 80
    compute_capability: tuple[int, int] = (9, 0)
    temperature_c: int = 41
    power_limit_w: float | None = 700.0
    power_w: float | None = 120.0
    clocks_mhz: dict[int, int] | None = field(default_factory=lambda: {SM: 1980, MEMORY: 2619})
    reasons: int | None = pynvml.nvmlClocksThrottleReasonGpuIdle
    held_ns: dict[int, int] = field(default_factory=dict)  # by field id; others are not supported
    processes: list[OtherProcess] = field(default_factory=list)
    slices: list[Slice] | None = None  # None: it has no MIG

    @property
    def uuid(self) -> str:
        return f"GPU-{self.letter}"

    @property
    def name(self) -> str:
        return f"Test {self.letter}"


Handle = Gpu | Slice


def install(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
    """Let pynvml answer for a machine with these GPUs; a name that pynvml does not have is an error."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    for name, answer in _answers(gpus).items():
        monkeypatch.setattr(pynvml, name, answer)


def error(code: int) -> Exception:
    """Return the error class that pynvml has for a code."""
    raised: Exception = pynvml.NVMLError(code)
    return raised


def _answers(gpus: tuple[Gpu, ...]) -> dict[str, Callable[..., Any]]:
    everything: list[Handle] = [*gpus, *(each for gpu in gpus for each in gpu.slices or [])]
    return {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "999.1",
        "nvmlSystemGetCudaDriverVersion": lambda: 12080,
        "nvmlSystemGetProcessName": lambda pid: f"/usr/bin/job{pid} --fast",
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: _known(gpus[index] if index < len(gpus) else None),
        "nvmlDeviceGetHandleByUUID": lambda uuid: _known(
            next((each for each in everything if each.uuid == uuid), None)
        ),
        "nvmlDeviceGetName": lambda handle: handle.name,
        "nvmlDeviceGetUUID": lambda handle: handle.uuid,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=handle.memory_gib * 2**30),
        **_mig(gpus),
        **_board(),
        **_processes(),
    }


def _mig(gpus: tuple[Gpu, ...]) -> dict[str, Callable[..., Any]]:
    parents = {each.uuid: gpu for gpu in gpus for each in gpu.slices or []}
    return {
        "nvmlDeviceIsMigDeviceHandle": lambda handle: c_uint(isinstance(handle, Slice)),  # as pynvml: not unpacked
        "nvmlDeviceGetMigMode": lambda handle: [1, 1] if _supported(_board_only(handle).slices) is not None else None,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": lambda handle, place: _known(dict(enumerate(handle.slices)).get(place)),
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda handle: parents[handle.uuid],
        "nvmlDeviceGetAttributes": lambda handle: SimpleNamespace(
            computeInstanceSliceCount=1, gpuInstanceSliceCount=2, multiprocessorCount=16, memorySizeMB=9984
        ),
    }


def _board() -> dict[str, Callable[..., Any]]:
    def counters(gpu: Gpu, ids: list[int]) -> list[SimpleNamespace]:
        held = [_board_only(gpu).held_ns.get(each) for each in ids]
        refused = pynvml.NVML_ERROR_NOT_SUPPORTED
        return [
            SimpleNamespace(nvmlReturn=refused if ns is None else 0, value=SimpleNamespace(ullVal=ns or 0))
            for ns in held
        ]

    return {
        "nvmlDeviceGetCudaComputeCapability": lambda gpu: _board_only(gpu).compute_capability,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: int(_supported(_board_only(gpu).power_limit_w) * 1000),
        "nvmlDeviceGetPowerUsage": lambda gpu: int(_supported(_board_only(gpu).power_w) * 1000),
        "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: _supported(_board_only(gpu).clocks_mhz)[kind],
        "nvmlDeviceGetClockInfo": lambda gpu, kind: _supported(_board_only(gpu).clocks_mhz)[kind] // 2,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: _supported(_board_only(gpu).reasons),
        "nvmlDeviceGetTemperature": lambda gpu, sensor: _board_only(gpu).temperature_c,
        "nvmlDeviceGetFieldValues": counters,
    }


def _processes() -> dict[str, Callable[..., Any]]:
    def computing(handle: Handle) -> list[SimpleNamespace]:
        found = handle.processes if isinstance(handle, Gpu) else []
        return [SimpleNamespace(pid=each.pid, usedGpuMemory=each.memory_bytes) for each in found]

    def refused(handle: Handle) -> list[SimpleNamespace]:
        raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)

    return {
        "nvmlDeviceGetComputeRunningProcesses": computing,
        "nvmlDeviceGetGraphicsRunningProcesses": computing,  # a process may do both
        "nvmlDeviceGetMPSComputeRunningProcesses": refused,
    }


def _known(handle: Handle | None) -> Handle:
    if handle is None:
        raise error(pynvml.NVML_ERROR_NOT_FOUND)
    return handle


def _board_only(handle: Handle) -> Gpu:
    if not isinstance(handle, Gpu):
        raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return handle


def _supported(value: Any) -> Any:
    if value is None:
        raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value
