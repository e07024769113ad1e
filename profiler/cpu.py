"""This machine's processor, as far as this process may use it; read from Linux's /proc and /sys where they are."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from ..errors import DeviceError
from .records.device import Device

# the vector extensions that choose between kernels; /proc/cpuinfo's names, x86 then Arm
ROOT = Path("/")

FAST_ISA = (
    *("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
ASKED = "import torch; print(torch.get_num_threads())"
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
        threads=torch_threads(),
        isa=processor.isa,
        libraries=libraries,
        sockets=processor.sockets,
        cpu_quota=cpu_allowance().quota,
    )


def torch_threads() -> int:
    """Return the threads that an operation of PyTorch uses: all allowed cores where it is not installed.

    Where it is not loaded, another process says so: in this one it would take 300 MB beside whatever is measured.
    """
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    try:
        is_installed = importlib.util.find_spec("torch") is not None
    except ModuleNotFoundError:
        is_installed = False
    return _threads_there() if is_installed else len(allowed_cores())


@cache
def _threads_there() -> int:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(f"PyTorch cannot be imported ({done.stderr.strip()[-200:]}); install it again")
    return int(done.stdout)


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
    """Return the memory available without swapping and within control groups; None where it is unknown."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAllowance:
    """The tightest quota on the way from this process's control group to the root, and what the quotas cost so far."""

    quota: float | None  # cores' worth of time; None without a limit
    throttled: int | None  # periods that ended before the process had what it wanted; None without counters
    throttled_s: float | None  # time it was kept waiting


def cpu_allowance(root: Path = ROOT) -> CpuAllowance:
    """Return the CPU that control groups grant this process; proc and sys lie under `root`."""
    folders = list(_folders(root, "cpu"))
    quotas = [quota for folder in folders if (quota := _quota(folder)) is not None]
    counts = [count for folder in folders if (count := _throttling(folder)) is not None]
    return CpuAllowance(
        quota=min(quotas, default=None),
        throttled=sum(times for times, _ in counts) if counts else None,
        throttled_s=sum(seconds for _, seconds in counts) if counts else None,
    )


def memory_left(root: Path = ROOT) -> int | None:
    """Return the bytes left by the tightest control group, with file pages as free; None without a limit."""
    return min((left for folder in _folders(root, "memory") if (left := _left(folder)) is not None), default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    groups = _text(root / "proc/self/cgroup") or ""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = PurePosixPath(path)
        for place in (group, *group.parents):
            if (folder := mounted / str(place).lstrip("/")).is_dir():
                yield folder


def _quota(folder: Path) -> float | None:
    limit = _text(folder / "cpu.max")
    if limit is None:
        parts = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
        limit = " ".join(part.strip() for part in parts if part)
    words = limit.split()
    if len(words) != 2 or not all(word.isdigit() for word in words):  # "max" or -1: no limit
        return None
    return int(words[0]) / int(words[1])


def _left(folder: Path) -> int | None:
    """Return what a group's limit leaves; version 1 writes a huge number where there is none."""
    limit = _text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes") or ""
    used = _text(folder / "memory.current") or _text(folder / "memory.usage_in_bytes") or ""
    if not limit.strip().isdigit() or not used.strip().isdigit():  # "max": no limit
        return None
    held = dict(line.split() for line in (_text(folder / "memory.stat") or "").splitlines())
    whole = "total_" if "total_inactive_file" in held else ""
    files = sum(int(held.get(f"{whole}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(0, int(limit) - int(used) + files)


def _throttling(folder: Path) -> tuple[int, float] | None:
    """Return how often a group was throttled and for how many seconds; version 1 counts nanoseconds."""
    fields = dict(line.split() for line in (_text(folder / "cpu.stat") or "").splitlines())
    if "nr_throttled" not in fields:
        return None
    micros = float(fields["throttled_usec"]) if "throttled_usec" in fields else float(fields["throttled_time"]) / 1e3
    return int(fields["nr_throttled"]), micros / 1e6


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
