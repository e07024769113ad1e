"""How a GPU is doing now, as NVML tells."""

from __future__ import annotations

import os
import sys
import time
from pathlib import PurePath

import pynvml

from ..errors import DeviceError
from .nvml import Handle, board_of, handle_of, nvml_session, optional
from .records.device import Device
from .records.state import DeviceState, OtherProcess

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
