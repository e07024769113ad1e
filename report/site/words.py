"""How the pages say moments, counts, speeds and whom a plan is for."""

from __future__ import annotations

from markupsafe import Markup

from ...db.rows import ENGINE_PLAN, FILED_APART, WHAT_IF, mark_of
from ...errors import PlanError
from ...planner.plans.observation import moment_of

NONE = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"
TO = "\N{EN DASH}"


def moment(text: str) -> Markup:
    """Return a moment in UTC, to the minute; texts that are none stay as they are."""
    try:
        read = moment_of(text)
    except PlanError:
        return Markup("<span>{}</span>").format(text or NONE)
    time = read.isoformat(timespec="seconds")
    return Markup('<time datetime="{}">{} UTC</time>').format(time, f"{read:%Y-%m-%d %H:%M}")


def sampling(temperature: float) -> str:
    """Return how tokens are chosen at a temperature."""
    return "greedy" if temperature == 0.0 else f"temperature {temperature:g}"


def times(factor: float) -> str:
    """Return a speed-up."""
    return f"{factor:.2f}{TIMES}"


def speed(tokens_per_s: float) -> str:
    """Return tokens per second without their unit."""
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 100.0 else f"{tokens_per_s:.1f}"


def interval(low: float, high: float) -> str:
    """Return an interval of speeds without their unit."""
    return f"{speed(low)}{TO}{speed(high)}"


def count(number: int, thing: str) -> str:
    """Return a count with its noun."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def plain_device(device: str) -> str:
    """Return the fingerprint of the device that a plan is for, without the mark it is filed under."""
    return device.removeprefix(mark_of(device))


def filings_of(fingerprint: str) -> tuple[str, ...]:
    """Return the devices under which plans for a device are filed: its own, and what-ifs and engines apart."""
    return (fingerprint, *(f"{mark}{fingerprint}" for mark in FILED_APART))


def is_guess(device: str) -> bool:
    """Say whether a plan filed under this device rests on anything but its measurements."""
    return device.startswith(WHAT_IF)


def engine_of(device: str, workload: str) -> str | None:
    """Return the engine of a plan that is filed so, which follows its workload; None for our own decoder."""
    if mark_of(device) != ENGINE_PLAN:
        return None
    engine = workload.rpartition(" (")[2].removesuffix(")")
    return engine if workload.endswith(f" ({engine})") else "another engine"


def apart(device: str, workload: str) -> str | None:
    """Return why a plan filed under a mark is no plan like those beside it; None for one of the device's own."""
    if is_guess(device):
        return "a guess, not measured on this device"
    engine = engine_of(device, workload)
    return None if engine is None else f"for {engine}; our decoder does not follow it"


SAID = (moment, sampling, times, speed, interval, count, is_guess, engine_of, apart)  # for templates
