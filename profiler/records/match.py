"""How near two devices are: the same, of one kind, or other; and each thing in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import DeviceError
from .device import Device

Grade = Literal["same", "same-kind", "other"]
Aspect = Literal["hardware", "setting", "version", "board"]

GRADES: tuple[Grade, ...] = ("same", "same-kind", "other")  # nearest first
ASPECTS: tuple[Aspect, ...] = ("hardware", "setting", "version", "board")  # what moves timings most first
UNKNOWN = "none"

Traits = dict[tuple[Aspect, str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in which a device that was found differs from the one that was wanted."""

    aspect: Aspect
    field: str  # in words, e.g. "power limit (W)", "torch"
    wanted: str  # "none" where it is not set or not known
    seen: str

    def __str__(self) -> str:
        return f"{self.field} {self.seen} instead of {self.wanted}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMatch:
    """How well measurements of one device stand for another; only the same device has no differences.

    same: equal fingerprints. same-kind: equal hardware under other settings or versions, or another board of the
    same model. other: anything else.
    """

    grade: Grade
    differences: tuple[Difference, ...] = ()

    def __post_init__(self) -> None:
        if (self.grade == "same") == bool(self.differences):
            raise DeviceError(f"a match of grade {self.grade!r} with {len(self.differences)} differences; name each")

    @property
    def distance(self) -> tuple[int, ...]:
        """Order matches, nearest first: by grade, then by differences in hardware, settings, versions and board."""
        counts = (sum(each.aspect == aspect for each in self.differences) for aspect in ASPECTS)
        return (GRADES.index(self.grade), *counts)

    @property
    def in_brief(self) -> str:
        """What differs, without the values; "no difference" between equal devices."""
        fields = ", ".join(difference.field for difference in self.differences)
        return f"other {fields}" if fields else "no difference"

    def __str__(self) -> str:
        return ", ".join(str(difference) for difference in self.differences) or "no difference"


def match_devices(wanted: Device, have: Device) -> DeviceMatch:
    """Return how well measurements of the device `have` hold for the device `wanted`."""
    if wanted.fingerprint == have.fingerprint:
        return DeviceMatch(grade="same")
    here, there = _traits(wanted), _traits(have)
    differences = tuple(
        Difference(aspect=aspect, field=field, wanted=_words(here.get(key)), seen=_words(there.get(key)))
        for key in dict.fromkeys((*here, *there))
        if here.get(key) != there.get(key)
        for aspect, field in (key,)
    )
    return DeviceMatch(grade="same-kind" if wanted.kind_key == have.kind_key else "other", differences=differences)


def nearest(wanted: Device, devices: Sequence[Device]) -> Device | None:
    """Return the device that matches best, the first among equals; None without any."""
    return min(devices, key=lambda have: match_devices(wanted, have).distance, default=None)


def _traits(device: Device) -> Traits:
    return {
        ("hardware", "kind"): device.kind,
        ("hardware", "name"): device.name,
        ("hardware", "memory (GiB)"): device.memory_gib,
        ("hardware", "cores"): device.cores,
        ("hardware", "CPU quota (cores)"): device.cpu_quota,
        ("hardware", "sockets"): device.sockets or 1,  # as in the keys, one goes without saying
        ("hardware", "vector extensions"): tuple(sorted(device.isa)),
        ("hardware", "compute capability"): device.compute_capability,
        ("hardware", "MIG profile"): device.mig_profile,
        ("setting", "threads"): device.threads,
        ("setting", "power limit (W)"): device.power_limit_w,
        ("setting", "maximum SM clock (MHz)"): device.max_sm_clock_mhz,
        ("setting", "maximum memory clock (MHz)"): device.max_memory_clock_mhz,
        ("version", "driver"): device.driver,
        ("version", "CUDA of the driver"): device.cuda,
        **{("version", name): version for name, version in device.libraries},
        ("board", "board"): device.uuid or f"{device.kind}:{device.index}",
    }


def _words(value: object) -> str:
    if value is None or value == ():
        return UNKNOWN
    if isinstance(value, tuple):
        return " ".join(value)
    return f"{value:.10g}" if isinstance(value, float) else str(value)
