"""NVIDIA's management library: a session with it, its handles, and readings that a GPU may not have."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, TypeVar

import pynvml

from ..errors import DeviceError
from .records.device import Device
from .records.state import DeviceState, OtherProcess

Handle = Any  # NVML's own type; pynvml ships none
Answer = TypeVar("Answer")


@contextmanager
def nvml_session() -> Iterator[bool]:
    """Hold NVML open for a block; False where there is no driver, so no GPU.

    DeviceError where the driver does not answer, or a required reading in the block fails.
    """
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield False
        return
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver does not answer ({error}); check nvidia-smi") from error
    try:
        yield True
    except pynvml.NVMLError as error:
        raise DeviceError(f"a GPU cannot be read ({error}); check nvidia-smi and CUDA_VISIBLE_DEVICES") from error
    finally:
        pynvml.nvmlShutdown()


def optional(read: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return a reading, or None where this GPU, driver or user cannot have it."""
    try:
        return read(*arguments)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_NotFound,
        pynvml.NVMLError_InvalidArgument,  # what some drivers say of a question about a MIG slice
    ):
        return None


def visible_handles() -> list[Handle]:
    """Return the handles of what CUDA may use, in PCI order or as CUDA_VISIBLE_DEVICES names them.

    MIG slices replace their GPU. CUDA may show only the first: name the slice to use in CUDA_VISIBLE_DEVICES.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        named = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    else:
        named = [_named(entry.strip()) for entry in wanted.split(",") if entry.strip() not in ("", "-1")]
    return [handle for given in named for handle in _slices(given)]


def require_known_order() -> None:
    """Raise DeviceError where numbers of GPUs of several models may mislead: CUDA counts the fastest first."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or all(
        entry.strip().startswith(("GPU-", "MIG-")) for entry in named
    ):
        return
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    models = sorted({pynvml.nvmlDeviceGetName(handle) for handle in handles})
    if len(models) > 1:
        raise DeviceError(
            f"the GPUs here are of several models ({', '.join(models)}), which CUDA counts otherwise than the driver; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPU- uuids in CUDA_VISIBLE_DEVICES"
        )


def handle_of(device: Device) -> Handle:
    """Return the handle of a GPU that was found before; raise DeviceError where it is missing."""
    handles = visible_handles()
    if device.uuid is not None:
        handles = [handle for handle in handles if pynvml.nvmlDeviceGetUUID(handle) == device.uuid]
    elif device.index < len(handles):
        handles = [handles[device.index]]
    if not handles:
        raise DeviceError(f"{device.label} is no longer here; check nvidia-smi -L and CUDA_VISIBLE_DEVICES")
    return handles[0]


def is_slice(handle: Handle) -> bool:
    """Say whether a handle is a MIG slice rather than a whole GPU."""
    return bool(optional(pynvml.nvmlDeviceIsMigDeviceHandle, handle))


def board_of(handle: Handle) -> Handle:
    """Return the whole GPU behind a handle: power, clocks and temperature are those of the board."""
    return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_slice(handle) else handle


def _named(entry: str) -> Handle:
    if entry.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(entry)
    if not entry.isdigit():
        raise DeviceError(f"CUDA_VISIBLE_DEVICES names {entry!r}; give numbers or full GPU- uuids from nvidia-smi -L")
    return pynvml.nvmlDeviceGetHandleByIndex(int(entry))


def _slices(handle: Handle) -> list[Handle]:
    if is_slice(handle):
        return [handle]
    current, _ = optional(pynvml.nvmlDeviceGetMigMode, handle) or (pynvml.NVML_DEVICE_MIG_DISABLE, None)
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return [handle]
    places = range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    slices = (optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place) for place in places)
    return [each for each in slices if each is not None]


REASONS = {  # nvidia-smi's name of a reason -> its bit
    "gpu_idle": pynvml.nvmlClocksThrottleReasonGpuIdle,
    "applications_clocks_setting": pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
    "sw_power_cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sync_boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
    "sw_thermal_slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
    "hw_thermal_slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hw_power_brake_slowdown": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    "display_clock_setting": pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
}
COUNTERS = {  # what holds clocks back -> its counter of nanoseconds; the numbers of newer counters vary by driver
    "power limit": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    "temperature limit": pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    "sync boost": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
    "board limit": pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
}


def read_gpu_state(device: Device) -> DeviceState:
    """Return a GPU's present state, None or empty where it cannot be read; DeviceError where it does not answer."""
    with nvml_session() as is_there:
        if not is_there:
            raise DeviceError(f"no NVIDIA driver answers for {device.label}; check nvidia-smi")
        handle = handle_of(device)
        board = board_of(handle)
        milliwatts = optional(pynvml.nvmlDeviceGetPowerUsage, board)
        return DeviceState(
            device=device.fingerprint,
            read_at_s=time.time(),
            clock_mhz=optional(pynvml.nvmlDeviceGetClockInfo, board, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=optional(pynvml.nvmlDeviceGetClockInfo, board, pynvml.NVML_CLOCK_MEM),
            throttle_reasons=reason_names(optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, board) or 0),
            held_back_s=_held_back_s(board),
            temperature_c=optional(pynvml.nvmlDeviceGetTemperature, board, pynvml.NVML_TEMPERATURE_GPU),
            power_w=None if milliwatts is None else milliwatts / 1000.0,
            processes=without_ours(_processes(handle), os.getpid(), _reserved_bytes(device.index)),
        )


def reason_names(mask: int) -> tuple[str, ...]:
    """Return the throttle reasons in a mask by nvidia-smi's names; bits without a name as one hexadecimal number."""
    unnamed = mask & ~sum(REASONS.values())
    names = [name for name, bit in REASONS.items() if mask & bit]
    return (*names, f"{unnamed:#x}") if unnamed else tuple(names)


def without_ours(processes: tuple[OtherProcess, ...], own_pid: int, own_bytes: int | None) -> tuple[OtherProcess, ...]:
    """Return the processes of a GPU less our own.

    The driver counts processes as the host does, so in a container our id there is another. Where we hold `own_bytes`
    on the GPU (None: none) and our id is missing, the process with the nearest memory counts as ours.
    """
    ours = [each for each in processes if each.pid == own_pid]
    if not ours and own_bytes is not None:
        ours = sorted(processes, key=lambda each: abs((each.memory_bytes or 0) - own_bytes))[:1]
    return tuple(each for each in processes if each not in ours)


def _held_back_s(board: Handle) -> tuple[tuple[str, float], ...]:
    values = optional(pynvml.nvmlDeviceGetFieldValues, board, list(COUNTERS.values())) or ()
    counted = zip(COUNTERS, values, strict=False)
    return tuple((name, each.value.ullVal / 1e9) for name, each in counted if each.nvmlReturn == pynvml.NVML_SUCCESS)


def _processes(handle: Handle) -> tuple[OtherProcess, ...]:
    """Return every process on a GPU or slice once, whether it computes, draws or shares through MPS."""
    lists = (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    )
    found = {each.pid: each.usedGpuMemory for read in lists for each in optional(read, handle) or ()}
    return tuple(OtherProcess(pid=pid, name=_name(pid), memory_bytes=used) for pid, used in found.items())


def _name(pid: int) -> str:
    path = optional(pynvml.nvmlSystemGetProcessName, pid) or ""
    return PurePath(path.split(" ")[0]).name


def _reserved_bytes(index: int) -> int | None:
    """Return the memory torch holds on a GPU in this process; None where it has not started CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.memory_reserved(index))
