"""How fast one device was seen to read and to multiply: raw timings, and the limits they make."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from ...errors import MeasurementError
from .device import Device
from .limits import DeviceLimits, ReadSpeed


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTiming:
    """One footprint read again and again, with every raw pass."""

    footprint_bytes: int
    repeats_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_timings(self.footprint_bytes, self.repeats_ms, self)

    @property
    def bytes_per_s(self) -> float:
        """Speed of the fastest pass."""
        return self.footprint_bytes / min(self.repeats_ms) * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTiming:
    """The product of two square matrices, again and again, with every raw repeat."""

    dtype: str
    size: int  # rows and columns
    repeats_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_timings(self.size, self.repeats_ms, self)

    @property
    def flops_per_s(self) -> float:
        """Speed of the fastest repeat."""
        return 2.0 * self.size**3 / min(self.repeats_ms) * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRates:
    """What one device did at best."""

    device: str  # Device.fingerprint
    reads: tuple[ReadTiming, ...]  # footprints ascending
    products: tuple[ProductTiming, ...]

    def flops_per_s(self, dtype: str) -> float:
        """Return the speed of the fastest product in a number format; raise MeasurementError where none was timed."""
        speeds = [product.flops_per_s for product in self.products if product.dtype == dtype]
        if not speeds:
            raise MeasurementError(f"no product of {dtype} matrices was timed on {self.device}; measure it first")
        return max(speeds)

    def joined(self, later: PeakRates) -> PeakRates:
        """Return the better of two measurements, size by size; raise MeasurementError for different devices."""
        if later.device != self.device:
            raise MeasurementError(f"ceilings of {self.device} and of {later.device} do not belong together")
        reads = {read.footprint_bytes: read for read in self.reads}
        for read in later.reads:
            reads[read.footprint_bytes] = _best_read(reads.get(read.footprint_bytes), read)
        products = {(product.dtype, product.size): product for product in self.products}
        for product in later.products:
            place = (product.dtype, product.size)
            products[place] = _best_product(products.get(place), product)
        in_order = tuple(reads[footprint] for footprint in sorted(reads))
        return PeakRates(device=self.device, reads=in_order, products=tuple(products.values()))

    def limits(self, device: Device) -> DeviceLimits:
        """Return the limits of the device, with its name and memory."""
        dtypes = dict.fromkeys(product.dtype for product in self.products)
        return DeviceLimits(
            name=device.label,
            origin="measured",
            memory_bytes=device.memory_bytes,
            reads=tuple(
                ReadSpeed(footprint_bytes=read.footprint_bytes, bytes_per_s=read.bytes_per_s) for read in self.reads
            ),
            flops_per_s=tuple((dtype, self.flops_per_s(dtype)) for dtype in dtypes),
        )


def _best_read(known: ReadTiming | None, new: ReadTiming) -> ReadTiming:
    return new if known is None or new.bytes_per_s > known.bytes_per_s else known


def _best_product(known: ProductTiming | None, new: ProductTiming) -> ProductTiming:
    return new if known is None or new.flops_per_s > known.flops_per_s else known


def _require_timings(size: int, repeats_ms: tuple[float, ...], record: object) -> None:
    if size < 1 or not repeats_ms or not all(0.0 < repeat < math.inf for repeat in repeats_ms):
        raise MeasurementError(f"{record}: need a size of at least 1 and repeats that are positive and finite")
