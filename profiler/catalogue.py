"""Devices one does not have: their published speeds, each with its source.

`devices.json` holds the figures as their makers publish them: memory in GiB, bandwidth in GB/s, dense (not sparse)
matrix products in TFLOP/s, caches in MiB, microseconds between kernels; of GPUs that multiply no bfloat16 the compute
capability. What no public source tells is null there and absent here. Vendors round, and state speeds at a boost clock
that some boards exceed by a few percent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ..errors import DeviceError
from .records.device import GIB, Device
from .records.limits import DeviceLimits, ReadSpeed

Entry = Mapping[str, Any]  # JSON values: one device of devices.json
Figure = Mapping[str, Any]  # {"value": number, "source": key, "note": str, may be absent}
MIB = 2**20
SIMILAR = 0.75  # least likeness of names that are offered for an unknown one
MAKERS = re.compile(r"nvidia|geforce|tesla|instinct|amd|intel|\(r\)|platinum|[^a-z0-9+]")
SOFTWARE = (("catalogue", "1"),)  # so that no real device has the fingerprint of a catalogued one


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """The public document that a figure was taken from."""

    title: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One figure of a device and its source."""

    name: str  # e.g. "bandwidth_gb_per_s" or "tflops.bfloat16"
    value: float
    source: Citation
    note: str | None = None  # how it follows from what the document says, where that is not plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogued:
    """One device of the catalogue; `missing` names the figures that no public source gives."""

    device: Device
    limits: DeviceLimits
    figures: tuple[PublishedFigure, ...]
    missing: tuple[str, ...]


def catalogued(name: str) -> Catalogued:
    """Return the catalogued device of a name.

    Args:
        name: as its driver reports it, or an alias; case, spaces and the maker's name do not count.

    Raises:
        DeviceError: no device has the name; the message lists those with similar names, or all.
    """
    wanted, entries = _plain(name), _catalogue()["devices"]
    found = [entry for entry in entries if wanted in _names(entry)]
    if len(found) == 1:
        return _read(found[0])
    if len(found or _begun(wanted)) > 1:
        raise DeviceError(f"{name!r} may be several devices; choose one of: {', '.join(catalogue_names(name))}")
    raise DeviceError(f"the catalogue has no device {name!r}; choose one of: {', '.join(catalogue_names(name))}")


def catalogue_names(like: str = "") -> tuple[str, ...]:
    """Return the full name of every catalogued device, or of those whose names are like one, where there are any."""
    wanted, entries = _plain(like), _catalogue()["devices"]
    named = [entry for entry in entries if wanted in _names(entry)] or _begun(wanted)
    close = named or [entry for entry in entries if get_close_matches(wanted, _names(entry), n=1, cutoff=SIMILAR)]
    return tuple(entry["name"] for entry in close or entries)


def _begun(wanted: str) -> list[Entry]:
    entries = _catalogue()["devices"]
    return [entry for entry in entries if wanted and any(known.startswith(wanted) for known in _names(entry))]


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, Any]:
    text = files(__package__).joinpath("devices.json").read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text)
    return read


def _names(entry: Entry) -> list[str]:
    return [_plain(name) for name in (entry["name"], *entry["aliases"])]


def _plain(name: str) -> str:
    return MAKERS.sub("", name.lower())


def _read(entry: Entry) -> Catalogued:
    stated = {name: figure for name, figure in _figures(entry) if figure is not None}
    return Catalogued(
        device=_device(entry),
        limits=_limits(entry, {name: float(figure["value"]) for name, figure in stated.items()}),
        figures=tuple(_published(name, figure) for name, figure in stated.items()),
        missing=tuple(name for name, figure in _figures(entry) if figure is None),
    )


def _figures(entry: Entry) -> list[tuple[str, Figure | None]]:
    single = [
        (name, entry[name]) for name in ("memory_gib", "bandwidth_gb_per_s", "cache_mib", "cores") if name in entry
    ]
    grouped = [(f"{group}.{key}", figure) for group in ("tflops", "launch_us") for key, figure in entry[group].items()]
    return [*single, *grouped]


def _published(name: str, figure: Figure) -> PublishedFigure:
    source = Citation(**_catalogue()["sources"][figure["source"]])
    return PublishedFigure(name=name, value=float(figure["value"]), source=source, note=figure.get("note"))


def _device(entry: Entry) -> Device:
    cores = entry["cores"]["value"] if "cores" in entry else None
    return Device(
        kind=entry["kind"],
        name=entry["name"],
        index=0,
        memory_bytes=entry["memory_gib"]["value"] * GIB,
        cores=cores,
        threads=cores,
        libraries=SOFTWARE,
        compute_capability=entry["compute_capability"]["value"] if "compute_capability" in entry else None,
    )


def _limits(entry: Entry, values: Mapping[str, float]) -> DeviceLimits:
    def group(name: str, unit: float) -> tuple[tuple[str, float], ...]:
        found = (key for key in entry[name] if f"{name}.{key}" in values)
        return tuple((key, values[f"{name}.{key}"] * unit) for key in found)

    return DeviceLimits(
        name=entry["name"],
        origin="catalogued",
        memory_bytes=int(values["memory_gib"]) * GIB,
        reads=(ReadSpeed(footprint_bytes=0, bytes_per_s=values["bandwidth_gb_per_s"] * 1e9),),
        cache_bytes=int(values["cache_mib"] * MIB),
        flops_per_s=group("tflops", 1e12),
        launch_us=group("launch_us", 1.0),
    )
