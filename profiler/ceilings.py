"""The limits of a device that is here: measured once, remembered, and raised whenever it does better."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceError
from .catalogue import catalogued
from .clock import Call, Clock, clock_of
from .cpu import allowed_cores, last_level_cache_bytes
from .records.ceilings import PeakRates, ProductTiming, ReadTiming
from .records.device import Device
from .records.limits import DeviceLimits, ReadSpeed
from .remembered import cache_folder, recalled, remember

if TYPE_CHECKING:
    import torch


def measure_ceilings(device: Device, dtype: str, clock: Clock | None = None) -> PeakRates:
    """Return the speeds a device, whose lock the caller holds, reaches now, in a few seconds, or raise DeviceError."""
    reads, products = read_speeds(device, clock), peak_flops(device, dtype, clock)
    return PeakRates(device=device.fingerprint, reads=reads, products=products)


def known_ceilings(device: Device, folder: Path | None = None) -> PeakRates | None:
    """Return the best earlier measurement of exactly this device; None where there is none that can be read."""
    return recalled(PeakRates, _file(device, folder))


def remember_ceilings(device: Device, measured: PeakRates, folder: Path | None = None) -> PeakRates:
    """Store and return the better of a measurement and the remembered one, size by size; or raise DeviceError."""
    known, file = known_ceilings(device, folder), _file(device, folder)
    best = measured if known is None else known.joined(measured)
    remember(best, file)
    return best


def limits_here(device: Device, ceilings: PeakRates) -> DeviceLimits:
    """Return a present device's limits: the faster of measured and published speeds."""
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
    return DeviceLimits(
        name=measured.name,
        origin="measured",
        memory_bytes=measured.memory_bytes,
        reads=tuple(reads),
        flops_per_s=tuple(flops.items()),
        launch_us=published.launch_us,
    )


def _file(device: Device, folder: Path | None) -> Path:
    return (folder or cache_folder()) / f"ceilings-{device.fingerprint}.json"


PRODUCT_SIZES = (256, 512, 1024, 2048, 4096, 8192)
FOOTPRINTS = tuple(int(2 ** (20 + step / 2)) // 4096 * 4096 for step in range(21))  # 1 MiB to 1 GiB
CACHES = 4  # footprints of more last-level caches than this are all read from memory
SHARE_OF_MEMORY = 1 / 16  # a footprint takes no more
LONGEST_CALL_MS = 100.0  # larger sizes are left out
BUDGET_S = 2.0
FEWEST_TURNS = 5


def peak_flops(device: Device, dtype: str, clock: Clock | None = None) -> tuple[ProductTiming, ...]:
    """Return timed products of square matrices, by size, or DeviceError; `PeakRates.flops_per_s` takes the best."""
    timer = clock or clock_of(device)
    try:
        calls = _products(device, dtype, timer)
        timed = _in_turns(calls, timer)
    except (RuntimeError, AttributeError, TypeError) as error:  # torch's: no memory, no CUDA, no such format
        raise DeviceError(
            f"cannot multiply {dtype} matrices on {device.label} ({_first_line(error)}); choose another --dtype"
        ) from error
    return tuple(ProductTiming(dtype=dtype, size=size, repeats_ms=repeats) for size, repeats in timed.items())


def read_speeds(device: Device, clock: Clock | None = None) -> tuple[ReadTiming, ...]:
    """Return timed sums by array size, from a core's cache to beyond all caches, or raise DeviceError."""
    timer = clock or clock_of(device)
    try:
        timed = _in_turns(_sums(device), timer)
    except RuntimeError as error:  # torch's: no memory, no CUDA
        raise DeviceError(
            f"cannot read the memory of {device.label} ({_first_line(error)}); free some of it"
        ) from error
    return tuple(ReadTiming(footprint_bytes=size, repeats_ms=repeats) for size, repeats in timed.items())


def _products(device: Device, dtype: str, clock: Clock) -> dict[int, Call]:
    calls: dict[int, Call] = {}
    for size in PRODUCT_SIZES:
        calls[size] = _product(device, dtype, size)
        calls[size]()  # the first call also chooses a kernel
        if clock.time_ms(calls[size]) > LONGEST_CALL_MS / 8:  # twice the size takes eight times as long
            break
    return calls


def _product(device: Device, dtype: str, size: int) -> Call:
    import torch
    import torch.nn.functional as F

    left = torch.ones(size, size, dtype=getattr(torch, dtype), device=_place(device))
    right = torch.ones_like(left)

    def multiply() -> None:
        with torch.inference_mode():
            F.linear(left, right)  # x W^T, as a model's layers do it

    return multiply


def _sums(device: Device) -> dict[int, Call]:
    import torch

    largest = min(int(device.memory_bytes * SHARE_OF_MEMORY), CACHES * _cache_bytes(device))
    footprints = [size for size in FOOTPRINTS if size <= largest] or [FOOTPRINTS[0]]
    numbers = torch.ones(footprints[-1] // 4, dtype=torch.float32, device=_place(device))
    return {size: _sum(numbers[: size // 4]) for size in footprints}


def _cache_bytes(device: Device) -> int:
    """Return the size of the last cache before memory; a quarter of the largest footprint where it is not known."""
    if device.kind == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device.index).L2_cache_size)
    return last_level_cache_bytes(sorted(allowed_cores())) or FOOTPRINTS[-1] // CACHES


def _sum(numbers: torch.Tensor) -> Call:
    def add() -> None:
        numbers.sum()

    return add


def _in_turns(calls: Mapping[int, Call], clock: Clock) -> dict[int, tuple[float, ...]]:
    """Return the milliseconds of every call, in turns for the budget, each right behind an untimed one."""
    repeats_ms: dict[int, list[float]] = {size: [] for size in calls}
    end_s = clock.now_s() + BUDGET_S
    turns = 0
    while turns < FEWEST_TURNS or clock.now_s() < end_s:
        for size, call in calls.items():
            call()
            repeats_ms[size].append(clock.time_ms(call))
        turns += 1
    return {size: tuple(repeats) for size, repeats in repeats_ms.items()}


def _place(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
