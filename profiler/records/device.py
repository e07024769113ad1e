"""One processor that forwards run on, and the keys under which its measurements are found again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from ...errors import DeviceError

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A CPU or one GPU together with the software that drives it; a CPU has cores and threads, a GPU has neither."""

    kind: Literal["cpu", "cuda"]
    name: str
    index: int
    memory_bytes: int
    uuid: str | None = None
    cores: int | None = None  # cores this process may use
    threads: int | None = None  # threads one operation uses
    isa: tuple[str, ...] = ()  # vector extensions that change speed, e.g. "avx512f"
    compute_capability: str | None = None  # e.g. "9.0"
    driver: str | None = None
    cuda: str | None = None  # newest CUDA the driver supports, e.g. "12.8"
    power_limit_w: float | None = None
    libraries: tuple[tuple[str, str], ...] = ()  # (name, version)

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise DeviceError(f"device kind is {self.kind!r}; use 'cpu' or 'cuda'")
        if not self.name:
            raise DeviceError("device name is empty; give the name the driver or /proc/cpuinfo reports")
        if self.index < 0 or self.memory_bytes < 1:
            raise DeviceError(
                f"{self.name}: need index >= 0 and memory_bytes >= 1, got {self.index}, {self.memory_bytes}"
            )
        if self.kind == "cpu" and min(self.cores or 0, self.threads or 0) < 1:
            raise DeviceError(f"{self.name}: a cpu needs cores and threads >= 1, got {self.cores} and {self.threads}")

    @property
    def fingerprint(self) -> str:
        """Name this device, its settings and its software in 16 hex digits; measurements hold for exactly this."""
        software = [self.uuid, self.threads, self.driver, self.cuda, self.power_limit_w, sorted(self.libraries)]
        place = None if self.uuid else self.index  # an index moves with CUDA_VISIBLE_DEVICES, a uuid does not
        return _digest([*self._hardware(), place, *software])

    @property
    def kind_key(self) -> str:
        """Name the hardware alone in 16 hex digits: equal for two devices of one model, whatever their software."""
        return _digest(self._hardware())

    @property
    def label(self) -> str:
        """Describe the device in a few words for people."""
        if self.kind == "cuda":
            return f"{self.name} (cuda:{self.index}, {self.memory_bytes / GIB:.0f} GiB)"
        return f"{self.name} (cpu, {self.cores} cores, {self.threads} threads)"

    def _hardware(self) -> list[object]:
        memory_gib = round(self.memory_bytes / GIB)  # the last bytes of a CPU's memory change from boot to boot
        return [self.kind, self.name, memory_gib, self.cores, sorted(self.isa), self.compute_capability]


def _digest(fields: list[object]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
