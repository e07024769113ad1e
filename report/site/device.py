"""A device: what it is and how it is set, what was measured on it, and the plans made for it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from ...db.rows import PlanRow
from ...profiler.records.device import Device
from .contents import Contents, SurfaceEntry
from .grid import number, table, words
from .links import HOME, Links, device_page, plan_page, surface_page
from .markup import Child, Html, joined, tag
from .page import SitePage, facts, head, link, note, part
from .words import NONE, count, engine_of, filings_of, is_guess, moment, plan_state, sampling

MOST_TIMINGS = 4_000  # of a device; beyond, surfaces are only listed, not read
MOST_PLANS = 200


def device_page_of(contents: Contents, links: Links, device: Device) -> SitePage:
    """Return the page of a device."""
    name = device_page(device.fingerprint)
    entries = contents.surfaces_of(device.fingerprint)
    body = joined(
        head(link(links, HOME, "Devices"), contents.label(device), _lede(entries)),
        facts(_facts(device)),
        _software(name, device),
        _surfaces(contents, links, name, entries),
        _plans(contents, links, name, device.fingerprint),
    )
    return SitePage(name=name, title=contents.label(device), body=body)


def _lede(entries: list[SurfaceEntry]) -> Child:
    last = max((entry.newest for entry in entries), default="")
    said = f"{count(len(entries), 'latency surface')}, {count(sum(e.timings for e in entries), 'timing')}"
    return [said, f"{'; the newest of ' if last else '.'}", moment(last) if last else None, "." if last else None]


def _facts(device: Device) -> Iterator[tuple[str, Child]]:
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
    yield "Fingerprint", tag("code", device.fingerprint)
    yield "Kind key", tag("code", device.kind_key)


def _software(name: str, device: Device) -> Html | None:
    rows = [*device.libraries]
    rows += [(what, seen) for what, seen in (("driver", device.driver), ("CUDA, newest", device.cuda)) if seen]
    if not rows:
        return None
    said = note("Measurements hold for exactly these versions: they are part of the fingerprint.")
    return part(
        name, "software", "Software", said, table("Versions that compute", [words("Name"), words("Version")], rows)
    )


def _surfaces(contents: Contents, links: Links, name: str, entries: list[SurfaceEntry]) -> Html:
    if not entries:
        return part(name, "surfaces", "Surfaces", note("Nothing was measured on this device."))
    is_read = sum(entry.timings for entry in entries) <= MOST_TIMINGS
    rows = [
        (
            link(links, surface_page(entry.slug), contents.model_name(entry.key.model)),
            entry.key.role,
            entry.key.regime,
            ", ".join(filter(None, (entry.key.dtype, entry.key.attention))),
            f"{entry.timings:,}",
            *(_steadiness(contents, entry) if is_read else (NONE, NONE)),
            moment(entry.newest) if entry.newest else NONE,
        )
        for entry in entries
    ]
    columns = [
        words("Model"), words("Role"), words("Regime"), words("Number format"), number("Timings"),
        number("Noise"), number("Drift"), number("Newest"),
    ]  # fmt: skip
    said = note(
        "What one forward costs, by tokens, context and batch. Noise: how far a repeat lies from its cell's median, in "
        "the middle of all repeats. Drift: how much the whole device changed its speed while it was measured."
    )
    return part(name, "surfaces", "Surfaces", said, table("Latency surfaces of this device", columns, rows))


def _steadiness(contents: Contents, entry: SurfaceEntry) -> tuple[str, str]:
    surface = contents.surface(entry.key)
    noise = surface.repeat_noise()
    return f"{statistics.median(noise):.1%}" if noise else NONE, f"{surface.drift():.1%}"


def _plans(contents: Contents, links: Links, name: str, fingerprint: str) -> Html:
    filings = filings_of(fingerprint)
    own = contents.newest_plans(MOST_PLANS, filings)
    if not own:
        return part(name, "plans", "Plans", note("There is no plan for this device."))
    rows = [
        (
            link(links, plan_page(row.id), f"{row.id}"),
            contents.model_name(row.target),
            row.workload,
            sampling(row.temperature),
            f"{row.version}",
            plan_state(row.state),
            _basis(row),
            moment(row.created),
        )
        for row in own
    ]
    columns = [
        words("Plan"), words("Target"), words("Workload"), words("Sampling"), number("Version"), words("State"),
        words("Rests on"), number("Made"),
    ]  # fmt: skip
    left = sum(row.plans for setup, row in contents.setups.items() if setup.device in filings) - len(own)
    more = note(f"{count(left, 'older plan')} not shown.") if left else None
    return part(name, "plans", "Plans", table("Plans for this device, newest first", columns, rows), more)


def _basis(row: PlanRow) -> str:
    engine = engine_of(row.device, row.workload)
    return "a guess" if is_guess(row.device) else "measured" if engine is None else f"measured in {engine}"
