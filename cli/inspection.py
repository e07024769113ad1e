"""Each device of this machine with its present state and its memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import DeviceError, NotInstalledError
from ..profiler.bandwidth import known_bandwidth, memory_bandwidth, remember_bandwidth
from ..profiler.device import detect_all
from ..profiler.lock import device_lock
from ..profiler.records.ceilings import Bandwidth
from ..profiler.records.device import Device
from ..profiler.records.state import DeviceState
from ..profiler.remembered import cache_folder
from ..profiler.state import read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One device as it was found."""

    device: Device
    state: DeviceState
    bandwidth: Bandwidth | None
    remark: str = ""  # why there is no bandwidth, or why it is not to be relied on

    @property
    def place(self) -> str:
        """How the device is addressed: "cpu" or "cuda:N"."""
        return "cpu" if self.device.kind == "cpu" else f"cuda:{self.device.index}"


def inspect_devices(measure: bool) -> tuple[Inspection, ...]:
    """Return every device of this machine, GPUs first; DeviceError where one cannot be read.

    `measure` measures bandwidths that are unknown or were disturbed, about a second each.
    """
    return tuple(_inspect(device, measure) for device in detect_all())


def _inspect(device: Device, measure: bool) -> Inspection:
    state = read_state(device)
    bandwidth, remark = known_bandwidth(device), ""
    if measure and (bandwidth is None or bandwidth.disturbances):
        try:
            bandwidth = _measured(device, bandwidth)
        except (DeviceError, NotInstalledError) as error:
            remark = str(error)
    if bandwidth is None:
        remark = remark or "leave out --no-measure"
    elif bandwidth.disturbances:
        remark = remark or f"measure again in peace: {bandwidth.disturbances[0]}"
    return Inspection(device=device, state=state, bandwidth=bandwidth, remark=remark)


def _measured(device: Device, known: Bandwidth | None) -> Bandwidth:
    """Measure while no profile of the device runs, and store the better of this and the known bandwidth.

    DeviceError: the device is in use, cannot be measured, or the result not stored. NotInstalledError: no torch.
    """
    if not _torch_can_use(device):
        raise DeviceError(f"the installed torch cannot use {device.label}; install one for CUDA {device.cuda}")
    with device_lock(device, cache_folder()):
        found = memory_bandwidth(device)
    if known is not None and found.disturbances and known.bytes_per_s >= found.bytes_per_s:
        return known
    remember_bandwidth(device, found)
    return found


def _torch_can_use(device: Device) -> bool:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise NotInstalledError("torch") from error
    return device.kind == "cpu" or torch.cuda.is_available()
