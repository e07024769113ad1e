"""How a device was doing at one moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...errors import DeviceError
from .device import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherProcess:
    """A process that is not ours and used the device when its state was read."""

    pid: int  # as the reader saw it; the driver of a GPU inside a container counts as the host does
    name: str = ""  # "" where it could not be read
    memory_bytes: int | None = None  # of a GPU
    cores: float | None = None  # kept busy

    def __str__(self) -> str:
        facts = [self.name or "unnamed", f"pid {self.pid}"]
        if self.memory_bytes is not None:
            facts.append(f"{self.memory_bytes / GIB:.1f} GiB")
        if self.cores is not None:
            facts.append(f"{self.cores:.1f} cores")
        return f"{facts[0]} ({', '.join(facts[1:])})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Seconds of CPU time on the cores a process may use, counted since the machine started."""

    cores: int
    busy_s: float  # by every process, ours included
    stolen_s: float  # kept back by the host of a virtual machine
    own_pid: int
    own_s: float  # by the process that read this and its ended children
    throttled: int | None = None  # periods in which its CPU quota stopped it; None where nothing counts them
    throttled_s: float | None = None

    def __post_init__(self) -> None:
        if self.cores < 1 or not all(0.0 <= each < math.inf for each in (self.busy_s, self.stolen_s, self.own_s)):
            raise DeviceError(f"{self}: need cores >= 1 and times that are finite and not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """What changes on a device by itself and moves timings; None or empty where it cannot be read.

    A clock is a GPU's SM clock or the mean of a CPU's allowed cores. Throttle reasons have nvidia-smi's names.
    Held-back times count from the driver's loading: only differences count. A MIG slice shows its board's values.
    """

    device: str  # Device.fingerprint
    read_at_s: float  # seconds since 1970
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    held_back_s: tuple[tuple[str, float], ...] = ()  # (what held the clocks down, for how many seconds so far)
    temperature_c: float | None = None
    power_w: float | None = None
    processes: tuple[OtherProcess, ...] = ()
    load_average: float | None = None  # runnable processes of the whole machine, over the last minute
    cpu: CpuTimes | None = None

    def __post_init__(self) -> None:
        if not self.device or not 0.0 <= self.read_at_s < math.inf:
            raise DeviceError(f"{self}: need the fingerprint of a device and the time of reading")
