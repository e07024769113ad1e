"""What the control groups of this process let it have of the CPU and of memory, in either version of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")


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
