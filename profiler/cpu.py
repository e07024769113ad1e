"""This machine's processor, as far as this process may use it; read from Linux's /proc and /sys where they are."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .cgroup import ROOT, cpu_allowance, memory_left
from .records.device import Device

# the vector extensions that choose between kernels; /proc/cpuinfo's names, x86 then Arm
FAST_ISA = (
    *("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
CPUINFO = Path("/proc/cpuinfo")
CPU_FOLDER = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What /proc/cpuinfo says about a machine's processor."""

    name: str
    sockets: int | None  # None where the kernel does not number them
    isa: tuple[str, ...]  # in FAST_ISA's order
    clocks_mhz: tuple[tuple[int, float], ...]  # (core, its clock now); empty where the kernel does not tell


def read_cpu(libraries: tuple[tuple[str, str], ...]) -> Device:
    """Return the processor with what this process may use of it; `libraries` (name, version) compute on it."""
    processor = processor_here()
    return Device(
        kind="cpu",
        name=processor.name,
        index=0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cores=len(allowed_cores()),
        threads=_threads(),
        isa=processor.isa,
        libraries=libraries,
        sockets=processor.sockets,
        cpu_quota=cpu_allowance().quota,
    )


def _threads() -> int:
    try:
        import torch
    except ModuleNotFoundError:
        return len(allowed_cores())
    return torch.get_num_threads()


def processor_here() -> Processor:
    """Return what this machine says about its processor."""
    return read_cpuinfo(CPUINFO.read_text() if CPUINFO.exists() else "")


def read_cpuinfo(text: str) -> Processor:
    """Return what the text of /proc/cpuinfo says; what is common to all cores is taken from the first."""
    cores = [_fields(block) for block in text.split("\n\n") if block.strip()]
    first = cores[0] if cores else {}
    flags = set(first.get("flags", first.get("Features", "")).split())
    arm = " ".join(f"{key} {first[key]}" for key in ("CPU implementer", "CPU part") if key in first)
    sockets = {core["physical id"] for core in cores if "physical id" in core}
    clocked = [core for core in cores if {"processor", "cpu MHz"} <= core.keys()]
    return Processor(
        name=first.get("model name") or arm or platform.processor() or platform.machine(),
        sockets=len(sockets) or None,
        isa=tuple(extension for extension in FAST_ISA if extension in flags),
        clocks_mhz=tuple((int(core["processor"]), float(core["cpu MHz"])) for core in clocked),
    )


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def available_bytes(root: Path = ROOT) -> int | None:
    """Return the memory available without swapping and within control groups; None where nothing tells."""
    told = dict(line.split(":", 1) for line in (_told(root / "proc/meminfo") or "").splitlines() if ":" in line)
    free = 1024 * int(told["MemAvailable"].split()[0]) if "MemAvailable" in told else None
    return min((one for one in (free, memory_left(root)) if one is not None), default=None)


def last_level_cache_bytes(cores: Sequence[int], folder: Path = CPU_FOLDER) -> int | None:
    """Return the size of all outermost caches of some cores, shared ones once; None where the system does not tell."""
    levels: dict[int, dict[str, int | None]] = {}  # level -> cores that share a cache -> its bytes
    for core in cores:
        for index in (folder / f"cpu{core}/cache").glob("index*"):
            level, shared, size = (_told(index / name) for name in ("level", "shared_cpu_list", "size"))
            if level and shared:
                levels.setdefault(int(level), {})[shared] = int(size[:-1]) * UNITS[size[-1]] if size else None
    outermost = list(levels[max(levels)].values()) if levels else []
    sizes = [size for size in outermost if size is not None]
    return sum(sizes) if sizes and len(sizes) == len(outermost) else None


def _told(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
