"""Which measurements of a store an estimate goes by: those of the device most like the one wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...db.store import Store
from ...errors import DeviceError, MeasurementError
from ...profiler.catalogue import Catalogued, catalogued
from ...profiler.ceilings import known_ceilings, limits_here, measure_ceilings, remember_ceilings
from ...profiler.device import detect_all
from ...profiler.efficiency import MeasuredSurface, calibrate
from ...profiler.lock import device_lock
from ...profiler.records.architecture import Architecture
from ...profiler.records.device import Device
from ...profiler.records.efficiency import Efficiency
from ...profiler.records.limits import DeviceLimits
from ...profiler.records.surface import LatencySurface
from ...profiler.remembered import cache_folder
from ...profiler.roofline import WHOLE_FORWARDS
from ..parts import architecture_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How efficient the closest measured device was, None where none can tell, and why others were passed over."""

    efficiency: Efficiency | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All surfaces of one device, regime and number format whose architectures are known."""

    device: Device
    regime: str
    dtype: str
    measured: tuple[MeasuredSurface, ...]

    @property
    def name(self) -> str:
        """Its name in notes."""
        return f"{self.device.label}, {self.regime}"

    @property
    def cells(self) -> int:
        """Cells in all."""
        return sum(len(each.surface.measurements) for each in self.measured)


def evidence_of(wanted: Catalogued, target: Architecture, dtype: str, regime: str | None, store: Store) -> Evidence:
    """Return the efficiency of the measured device that comes closest to a wanted one.

    A device of the same kind (CPU or GPU) comes first, then one that ran the target's own architecture, then the one
    with most cells. `regime` None means any.
    """
    if dtype not in dict(wanted.limits.flops_per_s):
        told = f"the catalogue has no sourced {dtype} speed of {wanted.device.name}: bounds count bytes alone"
        return Evidence(efficiency=None, reasons=(told,))
    groups = sorted(_groups(store, dtype, regime), key=lambda group: _closeness(group, wanted, target), reverse=True)
    reasons: list[str] = []
    for group in groups:
        try:
            efficiency = calibrate(group.measured, limits_of(group.device, dtype))
        except (DeviceError, MeasurementError) as error:  # another group may do
            reasons.append(f"{group.name}: {error}")
            continue
        if group.device.kind != wanted.device.kind:
            reasons.append(
                f"only a {group.device.kind} was measured; another kind of device keeps to its limits otherwise"
            )
        return Evidence(efficiency=efficiency, reasons=tuple(reasons))
    return Evidence(efficiency=None, reasons=tuple(reasons))


def limits_of(device: Device, dtype: str) -> DeviceLimits:
    """Return a device's limits: measured if here (seconds, once per dtype), else published; or DeviceError."""
    ceilings = known_ceilings(device)
    is_known = ceilings is not None and any(product.dtype == dtype for product in ceilings.products)
    if not is_known and device.fingerprint in {here.fingerprint for here in detect_all()}:
        with device_lock(device, cache_folder()):
            ceilings = remember_ceilings(device, measure_ceilings(device, dtype))
    elif not is_known:
        return catalogued(device.name).limits
    assert ceilings is not None
    return limits_here(device, ceilings)


def _groups(store: Store, dtype: str | None = None, regime: str | None = None) -> Iterable[Group]:
    devices = {device.fingerprint: device for device in store.devices()}
    found: dict[tuple[str, str, str], list[MeasuredSurface]] = {}
    for surface in store.surfaces(dtype=dtype, regime=regime):
        architecture = _architecture(store, surface)
        if architecture is not None and surface.device in devices:
            place = (surface.device, surface.regime, surface.dtype)
            found.setdefault(place, []).append(MeasuredSurface(surface=surface, architecture=architecture))
    for (device, ran, number_format), measured in found.items():
        yield Group(device=devices[device], regime=ran, dtype=number_format, measured=tuple(measured))


def _architecture(store: Store, surface: LatencySurface) -> Architecture | None:
    """Return the architecture of a measured whole forward; None for others, and for missing or changed models."""
    model = store.find_model(surface.model)
    if model is None or surface.origin != "measured" or surface.role not in WHOLE_FORWARDS:
        return None
    architecture = architecture_of(model)
    return None if architecture is None or architecture.stored.uncounted else architecture


def _closeness(group: Group, wanted: Catalogued, target: Architecture) -> tuple[bool, bool, int]:
    is_same_kind = group.device.kind == wanted.device.kind
    return is_same_kind, any(each.architecture == target for each in group.measured), group.cells
