"""One processor that forwards run on, and the keys under which its measurements are found again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from ...errors import DeviceError

GIB = 2**30
AUTO_DTYPE = "auto"  # asks for the device's native one
BFLOAT16_ISA = {"avx512_bf16", "amx_bf16", "bf16"}
AMX_ROWS = 16  # of a tile of Intel's matrix unit
DOT_ROWS = 8  # that our bf16 products take at once: 9 rows of a 1.5B take 1.3 times as long as 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A CPU or one GPU, how it is set, and the software that drives it; a CPU has cores and threads, a GPU has neither.

    All of it is the fingerprint: what the device is, what it may use (cores, quota, power, MIG slice) and which
    versions compute. What changes by itself from minute to minute, clocks, temperature or other processes, is a
    `DeviceState`. Number format, attention kernel and regime differ between surfaces of one device and are part of
    each surface's `SurfaceKey`.
    """

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
    power_limit_w: float | None = None  # enforced now; of the whole board for a MIG slice
    libraries: tuple[tuple[str, str], ...] = ()  # (name, version)
    sockets: int | None = None  # None where the system does not tell
    cpu_quota: float | None = None  # cores' worth of time the control groups grant; None: all of them
    mig_profile: str | None = None  # e.g. "1g.10gb"; None for a whole GPU
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None

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
        amounts = (self.power_limit_w, self.sockets, self.cpu_quota, self.max_sm_clock_mhz, self.max_memory_clock_mhz)
        if any(amount is not None and amount <= 0 for amount in amounts):
            raise DeviceError(f"{self.name}: watts, sockets, quota and clocks must be above 0 or None, got {amounts}")

    @property
    def fingerprint(self) -> str:
        """Name this device, its settings and its software in 16 hex digits; measurements hold for exactly this."""
        power_w = None if self.power_limit_w is None else float(self.power_limit_w)
        software = [self.uuid, self.threads, self.driver, self.cuda, power_w, sorted(self.libraries)]
        place = None if self.uuid else self.index  # an index moves with CUDA_VISIBLE_DEVICES, a uuid does not
        clocks = _known(sm=self.max_sm_clock_mhz, memory=self.max_memory_clock_mhz)
        return _digest([*self._hardware(), place, *software, *clocks])

    @property
    def kind_key(self) -> str:
        """Name the hardware alone in 16 hex digits: equal for two devices of one model, whatever their software."""
        return _digest(self._hardware())

    @property
    def label(self) -> str:
        """Describe the device in a few words for people."""
        if self.kind == "cuda":
            return f"{self.name} (cuda:{self.index}, {self.memory_gib} GiB)"
        return f"{self.name} (cpu, {self.cores} cores, {self.threads} threads)"

    @property
    def native_dtype(self) -> str:
        """The narrowest number format of weights that this device multiplies at full speed.

        bfloat16; float32 on a CPU whose known vector extensions lack it (many tokens at once are several times slower
        in bfloat16), and float16 on a GPU before compute capability 8.0.
        """
        if self.kind == "cpu":
            return "float32" if self.isa and not BFLOAT16_ISA & set(self.isa) else "bfloat16"
        is_old = self.compute_capability is not None and int(self.compute_capability.split(".")[0]) < 8
        return "float16" if is_old else "bfloat16"

    def dtype_for(self, asked: str) -> str:
        """Return the requested number format; the native one for 'auto'."""
        return self.native_dtype if asked == AUTO_DTYPE else asked

    def tile_rows(self, dtype: str) -> int:
        """Return the rows that one product takes at once in a number format; 0 where no such step is known."""
        if self.kind != "cpu" or self.dtype_for(dtype) != "bfloat16":
            return 0
        if "amx_bf16" in self.isa:
            return AMX_ROWS
        return DOT_ROWS if "avx512_bf16" in self.isa else 0

    @property
    def memory_gib(self) -> int:
        """Memory in whole GiB: the last bytes of a CPU's change from boot to boot."""
        return round(self.memory_bytes / GIB)

    def _hardware(self) -> list[object]:
        """List what makes the kind; one socket goes without saying, so that older records keep their keys."""
        more_sockets = self.sockets if (self.sockets or 1) > 1 else None
        quota = None if self.cpu_quota is None else float(self.cpu_quota)
        later = _known(sockets=more_sockets, quota=quota, mig=self.mig_profile)
        first = [self.kind, self.name, self.memory_gib, self.cores, sorted(self.isa), self.compute_capability]
        return [*first, *later]


def _known(**fields: object) -> list[object]:
    return [[name, value] for name, value in fields.items() if value is not None]


def _digest(fields: list[object]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]
