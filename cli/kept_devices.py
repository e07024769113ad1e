"""The devices a store holds measurements of, each beside the device here that is nearest to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..profiler.records.device import Device
from ..profiler.records.match import DeviceMatch, match_devices, nearest
from .readings import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDevice:
    """A device of the store, and how well its measurements stand for the nearest device here."""

    device: Device
    here: Device
    match: DeviceMatch


def compare(kept: Sequence[Device], here: Sequence[Device]) -> tuple[KeptDevice, ...]:
    """Return every stored device beside the nearest one here, the best matches first; none without devices here."""
    pairs = [(device, nearest(device, here)) for device in kept]
    matched = [
        KeptDevice(device=device, here=mine, match=match_devices(wanted=mine, have=device))
        for device, mine in pairs
        if mine is not None
    ]
    return tuple(sorted(matched, key=lambda each: each.match.distance))


def findings_of(matched: Sequence[KeptDevice]) -> Iterator[Finding]:
    """Yield for each stored device how well it matches and what differs."""
    for each in matched:
        place = "the CPU" if each.here.kind == "cpu" else f"cuda:{each.here.index}"
        name = f"measured {each.device.fingerprint}"
        if each.match.grade == "same":
            yield Finding(name=name, seen=f"{each.device.label}: the same as {place} here")
        elif each.match.grade == "same-kind":
            seen = f"{each.device.label}: the same kind as {place} here, but "
            advice = "profile again for exact predictions"
            brief = seen + each.match.in_brief
            yield Finding(name=name, seen=seen + str(each.match), in_brief=brief, verdict="note", advice=advice)
        else:
            seen = f"{each.device.label}: another device; nearest is {place} here, but "
            yield Finding(name=name, seen=seen + str(each.match), in_brief=seen + each.match.in_brief)
