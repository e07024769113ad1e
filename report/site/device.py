"""A device: what it is and how it is set, what was measured on it, and the plans made for it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ...profiler.records.device import Device
from .contents import Contents, SurfaceEntry
from .links import Links, device_page
from .page import SitePage, page_of
from .words import NONE, count, filings_of

MOST_TIMINGS = 4_000  # of a device; beyond, surfaces are only listed, not read
MOST_PLANS = 200


def device_page_of(contents: Contents, links: Links, device: Device) -> SitePage:
    """Return the page of a device."""
    entries, filings = contents.surfaces_of(device.fingerprint), filings_of(device.fingerprint)
    plans = contents.newest_plans(MOST_PLANS, filings)
    is_read = sum(entry.timings for entry in entries) <= MOST_TIMINGS
    return page_of(
        "device.html",
        links,
        device_page(device.fingerprint),
        contents.label(device),
        contents=contents,
        device=device,
        entries=entries,
        facts=_facts(device),
        software=[*device.libraries, *((what, seen) for what, seen in _drivers(device) if seen)],
        steadiness=lambda entry: _steadiness(contents, entry) if is_read else (NONE, NONE),
        plans=plans,
        left=sum(row.plans for setup, row in contents.setups.items() if setup.device in filings) - len(plans),
    )


def _facts(device: Device) -> Iterator[tuple[str, str | None]]:
    yield "Kind", "NVIDIA GPU" if device.kind == "cuda" else "CPU"
    yield "Memory", f"{device.memory_gib:,} GiB"
    yield "Cores", None if device.cores is None else f"{device.cores}, {count(device.threads or 1, 'thread')} used"
    yield "Sockets", None if device.sockets is None else f"{device.sockets}"
    yield "CPU quota", None if device.cpu_quota is None else f"{device.cpu_quota:g} cores"
    yield "Instructions", ", ".join(device.isa)
    yield "Compute capability", device.compute_capability
    yield "MIG slice", device.mig_profile
    yield "Power limit", None if device.power_limit_w is None else f"{device.power_limit_w:,.0f} W"
    yield "Highest clock", None if device.max_sm_clock_mhz is None else f"{device.max_sm_clock_mhz:,} MHz"
    yield "Memory clock", None if device.max_memory_clock_mhz is None else f"{device.max_memory_clock_mhz:,} MHz"


def _drivers(device: Device) -> Iterator[tuple[str, str | None]]:
    yield "driver", device.driver
    yield "CUDA, newest", device.cuda


def _steadiness(contents: Contents, entry: SurfaceEntry) -> tuple[str, str]:
    surface = contents.surface(entry.key)
    noise = surface.repeat_noise()
    return f"{statistics.median(noise):.1%}" if noise else NONE, f"{surface.drift():.1%}"
