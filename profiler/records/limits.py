"""How fast a device can be at most: what a bound of its latency is drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...errors import DeviceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Bytes and operations of one forward; a multiply-add counts as two, `least_*` bounds any implementation."""

    weight_bytes: float  # every matrix and vector once; of experts as many as evenly spread routing would touch
    least_weight_bytes: float  # the same, with every row routed to the same experts
    cache_read_bytes: float  # keys and values of the context
    cache_write_bytes: float  # keys and values of the new tokens
    logit_bytes: float
    activation_bytes: float  # every intermediate result written once and read once
    matmul_flops: float
    context_flops: float  # attention of the new tokens to the context
    causal_flops: float  # attention among the new tokens, each to itself and those before it
    narrow_flops: float = 0.0  # of the matrix products, those with quantised activations
    narrow_dtype: str = ""  # number format of these

    @property
    def least_read_bytes(self) -> float:
        """Bytes that must reach the arithmetic units in any case: weights and context."""
        return self.least_weight_bytes + self.cache_read_bytes

    @property
    def read_bytes(self) -> float:
        """Bytes that must reach the arithmetic units where tokens spread evenly over experts: weights and context."""
        return self.weight_bytes + self.cache_read_bytes

    @property
    def bytes(self) -> float:
        """Bytes moved in all."""
        cache = self.cache_read_bytes + self.cache_write_bytes
        return self.weight_bytes + cache + self.logit_bytes + self.activation_bytes


FROM_FLOAT8 = {"float4": 2.0}  # as fast as float8 times this, where a device has both


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpeed:
    """Reading this many bytes, or more, again and again is no faster than this."""

    footprint_bytes: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        if self.footprint_bytes < 0 or not 0.0 < self.bytes_per_s < math.inf:
            raise DeviceError(f"{self}: need a footprint of 0 bytes or more and a finite, positive speed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """The speeds that no forward on a device exceeds.

    A measured device has a speed per footprint, since caches read faster. A catalogued one has its memory's speed and
    its last cache's size: of W bytes read in turn, W - cache at least come from memory.
    """

    name: str
    origin: Literal["catalogued", "measured"]
    memory_bytes: int
    reads: tuple[ReadSpeed, ...]  # footprints ascending
    cache_bytes: int = 0  # what a forward may find in the last cache; 0 where `reads` already tell
    flops_per_s: tuple[tuple[str, float], ...] = ()  # (dtype, dense matrix products); absent where it is not known
    launch_us: tuple[tuple[str, float], ...] = ()  # (regime, from one kernel's end to the next); absent likewise

    def __post_init__(self) -> None:
        footprints = [read.footprint_bytes for read in self.reads]
        if not footprints or footprints != sorted(set(footprints)):
            raise DeviceError(f"{self.name}: give reading speeds by ascending footprint, got {footprints}")
        if self.memory_bytes < 1 or self.cache_bytes < 0:
            raise DeviceError(f"{self.name}: memory is {self.memory_bytes} bytes, caches {self.cache_bytes}")
        if not all(0.0 < speed < math.inf for _, speed in self.flops_per_s):
            raise DeviceError(f"{self.name}: speeds must be positive and finite, got {self.flops_per_s}")

    def read_ms(self, footprint: float) -> float:
        """Return the least milliseconds to read so many bytes per forward; 0 below the smallest footprint."""
        slow = [read.bytes_per_s for read in self.reads if read.footprint_bytes > footprint]
        known = [read.bytes_per_s for read in self.reads if read.footprint_bytes <= footprint]
        if not known:
            return 0.0
        fastest = max(known[-1], *slow, 0.0)  # a larger footprint read faster was disturbed the less
        return 1e3 * max(0.0, footprint - self.cache_bytes) / fastest

    def compute_ms(self, flops: float, dtype: str) -> float:
        """Return the milliseconds that so many operations take at least; 0 where the speed is not known."""
        speed = dict(self.flops_per_s).get(dtype)
        return 0.0 if speed is None else 1e3 * flops / speed

    def matmul_ms(self, work: Work, dtype: str) -> float:
        """Return the least milliseconds of a forward's matrix products."""
        known, own = dict(self.flops_per_s), work.narrow_dtype
        faster = FROM_FLOAT8.get(own, 1.0)
        used = "float8" if own in FROM_FLOAT8 else own
        if not work.narrow_flops or used not in known:
            return self.compute_ms(work.matmul_flops, dtype)
        narrow_ms = self.compute_ms(work.narrow_flops, used) / faster
        return narrow_ms + self.compute_ms(work.matmul_flops - work.narrow_flops, dtype)
