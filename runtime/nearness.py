"""Whether a plan made on one device is at least a fair guess for another."""

from __future__ import annotations

from ..errors import DeviceError
from ..profiler.catalogue import Catalogued, catalogued
from ..profiler.records.device import Device
from ..profiler.records.limits import Limits
from ..profiler.records.match import match_devices

NEAR = 1.25  # most by which bandwidths, or arithmetic, of two near devices differ as a factor; a convention
HARMLESS = {"memory (GiB)"}  # hardware that may differ without changing a latency


def is_near(wanted: Device, have: Device, dtype: str) -> bool:
    """Return whether forwards on two devices of different kinds take similar shares of a round.

    What a plan chooses depends on how much more a forward of many tokens costs than one of few, so on the ratio of
    arithmetic to bandwidth. Two grounds are sound enough: the devices differ only in memory size; or the catalogue
    knows both, whole, of one sort, and bandwidth and arithmetic are each within a factor of `NEAR`.
    """
    match = match_devices(wanted, have)
    if {one.field for one in match.differences if one.aspect == "hardware"} <= HARMLESS:
        return True
    here, there = catalogued_as(wanted), catalogued_as(have)
    if here is None or there is None or wanted.kind != have.kind:
        return False
    return _are_close(here.limits, there.limits, dtype)


def is_near_in_any_dtype(wanted: Device, have: Device) -> bool:
    """Return whether any number format's plans are near; if not, the device's other plans need no check."""
    there = catalogued_as(have)
    known = () if there is None else there.limits.flops_per_s
    return any(is_near(wanted, have, dtype) for dtype, _ in known)


def catalogued_as(device: Device) -> Catalogued | None:
    """Return the catalogue's entry for a device; None where it has none, or only a part of the device is used."""
    try:
        found = catalogued(device.name)
    except DeviceError:
        return None
    is_whole = device.mig_profile is None and device.cpu_quota is None and device.cores == found.device.cores
    return found if is_whole and found.device.name == device.name else None


def _are_close(one: Limits, other: Limits, dtype: str) -> bool:
    arithmetic = [dict(limits.flops_per_s).get(dtype, 0.0) for limits in (one, other)]
    bandwidths = [limits.reads[0].bytes_per_s for limits in (one, other)]
    return all(0.0 < max(pair) <= NEAR * min(pair) for pair in (arithmetic, bandwidths))
