"""Measure a device's memory bandwidth, once, and remember it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceError
from .clock import Clock, clock_in, clock_of
from .cpu import allowed_cores, last_level_cache_bytes
from .records.ceilings import Bandwidth
from .records.device import Device
from .records.role import CAPTURED
from .remembered import cache_folder, recalled, remember
from .state import disturbances, read_state

if TYPE_CHECKING:
    import torch

CACHES_PER_ARRAY = 4  # STREAM's rule: no array may stay in the caches
SMALLEST_ARRAY_BYTES = 64 * 2**20
SHARE_OF_MEMORY = 1 / 8  # the three arrays together take no more
ELEMENT_BYTES = 4
BUDGET_S = 0.7
FEWEST_PASSES = 5
MOST_PASSES = 200


def memory_bandwidth(device: Device, clock: Clock | None = None) -> Bandwidth:
    """Return a device's memory bandwidth and disturbances, in about a second; DeviceError if arrays do not fit."""
    timer = clock or clock_in(clock_of(device), CAPTURED)  # one launch, as a captured forward
    before = read_state(device)
    try:
        a, b, c = _arrays(device)
        repeats_ms = _passes_ms(a, b, c, timer)
    except (RuntimeError, AssertionError) as error:  # torch's: out of memory, or a build without CUDA
        reason = str(error).splitlines()[0]
        raise DeviceError(f"cannot measure the memory of {device.label} ({reason}); free some of it") from error
    return Bandwidth(
        device=device.fingerprint,
        moved_bytes=3 * a.numel() * a.element_size(),
        repeats_ms=tuple(repeats_ms),
        disturbances=disturbances(before, read_state(device)),
    )


def known_bandwidth(device: Device, folder: Path | None = None) -> Bandwidth | None:
    """Return the remembered bandwidth of exactly this device; None where there is none that can be read."""
    found = recalled(Bandwidth, _file(device, folder))
    return found if found is not None and found.device == device.fingerprint else None


def remember_bandwidth(device: Device, measured: Bandwidth, folder: Path | None = None) -> Path:
    """Store a measurement for `known_bandwidth` and return its file; raise DeviceError where it cannot be written."""
    file = _file(device, folder)
    remember(measured, file)
    return file


def _file(device: Device, folder: Path | None) -> Path:
    return (folder or cache_folder()) / f"bandwidth-2-{device.fingerprint}.json"  # 1 was too low of GPUs


def _arrays(device: Device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    place = "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
    wanted = max(CACHES_PER_ARRAY * _cache_bytes(device), SMALLEST_ARRAY_BYTES)
    elements = int(min(wanted, device.memory_bytes * SHARE_OF_MEMORY / 3)) // ELEMENT_BYTES
    filled = [torch.full((elements,), value, dtype=torch.float32, device=place) for value in (0.0, 1.0, 2.0)]
    return filled[0], filled[1], filled[2]


def _cache_bytes(device: Device) -> int:
    import torch

    if device.kind == "cuda":
        return int(torch.cuda.get_device_properties(device.index).L2_cache_size)
    return last_level_cache_bytes(sorted(allowed_cores())) or 0


def _passes_ms(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, clock: Clock) -> list[float]:
    """Time passes until the budget is spent; the first, which meets cold pages, does not count."""
    import torch

    def triad() -> None:
        torch.add(b, c, alpha=3.0, out=a)

    clock.time_ms(triad)
    repeats_ms: list[float] = []
    end_s = clock.now_s() + BUDGET_S
    while len(repeats_ms) < FEWEST_PASSES or (clock.now_s() < end_s and len(repeats_ms) < MOST_PASSES):
        repeats_ms.append(clock.time_ms(triad))
    return repeats_ms
