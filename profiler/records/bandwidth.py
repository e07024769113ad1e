"""How fast a device moves memory, as it was measured once."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from ...errors import MeasurementError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Passes of a triad, a = b + s c, over arrays much larger than the caches, with every raw pass.

    Two arrays read and one written count, not what a write fetches first.

    Source: McCalpin, STREAM: Sustainable Memory Bandwidth in High Performance Computers (counting, best pass).
    """

    device: str  # Device.fingerprint
    moved_bytes: int  # by one pass, read and written
    repeats_ms: tuple[float, ...]
    disturbances: tuple[str, ...] = ()  # what else happened on the device meanwhile, in sentences

    def __post_init__(self) -> None:
        if not self.device or self.moved_bytes < 1 or not self.repeats_ms:
            raise MeasurementError(f"{self}: need a device, moved_bytes >= 1 and at least one repeat")
        if not all(0.0 < repeat < math.inf for repeat in self.repeats_ms):
            raise MeasurementError(f"{self}: repeats_ms must be positive and finite")

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of the fastest pass: what the memory does undisturbed."""
        return self.moved_bytes / min(self.repeats_ms) * 1e3

    @property
    def median_bytes_per_s(self) -> float:
        """Bandwidth of the middle pass: what it did while it was measured."""
        return self.moved_bytes / statistics.median(self.repeats_ms) * 1e3
