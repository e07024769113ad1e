"""The limits of a device that is here: measured once, remembered, and raised whenever it does better."""

from __future__ import annotations

from pathlib import Path

from ..errors import DeviceError
from .catalogue import catalogued
from .clock import Clock
from .peak import peak_flops, read_speeds
from .records.ceilings import Ceilings
from .records.device import Device
from .records.limits import Limits, ReadSpeed
from .remembered import cache_folder, recalled, remember


def measure_ceilings(device: Device, dtype: str, clock: Clock | None = None) -> Ceilings:
    """Return the speeds a device, whose lock the caller holds, reaches now, in a few seconds, or raise DeviceError."""
    reads, products = read_speeds(device, clock), peak_flops(device, dtype, clock)
    return Ceilings(device=device.fingerprint, reads=reads, products=products)


def known_ceilings(device: Device, folder: Path | None = None) -> Ceilings | None:
    """Return the best earlier measurement of exactly this device; None where there is none that can be read."""
    return recalled(Ceilings, _file(device, folder))


def remember_ceilings(device: Device, measured: Ceilings, folder: Path | None = None) -> Ceilings:
    """Store and return the better of a measurement and the remembered one, size by size; or raise DeviceError."""
    known, file = known_ceilings(device, folder), _file(device, folder)
    best = measured if known is None else known.joined(measured)
    remember(best, file)
    return best


def limits_here(device: Device, ceilings: Ceilings) -> Limits:
    """Return a present device's limits: the faster of measured and published speeds.

    A sum reads no faster than memory allows but may read slower, so a published bandwidth counts too.
    """
    measured = ceilings.limits(device)
    try:
        published = catalogued(device.name).limits
    except DeviceError:  # it is not in the catalogue
        return measured
    bandwidth = published.reads[0].bytes_per_s
    reads = (
        ReadSpeed(footprint_bytes=read.footprint_bytes, bytes_per_s=max(read.bytes_per_s, bandwidth))
        for read in measured.reads
    )
    flops = dict(measured.flops_per_s)
    flops |= {dtype: max(speed, flops.get(dtype, 0.0)) for dtype, speed in published.flops_per_s}
    return Limits(
        name=measured.name,
        origin="measured",
        memory_bytes=measured.memory_bytes,
        reads=tuple(reads),
        flops_per_s=tuple(flops.items()),
        launch_us=published.launch_us,
    )


def _file(device: Device, folder: Path | None) -> Path:
    return (folder or cache_folder()) / f"ceilings-{device.fingerprint}.json"
