"""What `spectune doctor` looks at: this device, the libraries and the store."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from ..errors import SpectuneError

Verdict = Literal["ok", "note", "broken"]
MINIMUM = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at; a note is worth knowing, what is broken keeps spectune from working."""

    name: str
    seen: str
    verdict: Verdict = "ok"
    advice: str = ""


def examine(store: str | None) -> tuple[Finding, ...]:
    """Return what was found about everything; nothing is created or changed.

    Args:
        store: where plans are kept, as `open_store` takes it.
    """
    libraries = list(library_findings(requires("spectune") or []))
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("devices", _devices),
        ("torch", _torch),
        ("store", lambda: _store(store)),
    ]
    system = Finding(name="spectune", seen=f"{version('spectune')}, Python {platform.python_version()}")
    return (system, *libraries, *(found for name, look in looks for found in _guarded(name, look)))


def library_findings(requirements: list[str]) -> Iterator[Finding]:
    """Yield a finding for every `name>=minimum`; extras are left out."""
    for requirement in requirements:
        if "extra ==" in requirement or not (found := MINIMUM.match(requirement)):
            continue
        name, minimum = found.groups()
        try:
            seen = version(name)
        except PackageNotFoundError:
            seen = ""
        is_enough = bool(seen) and _release(seen) >= _release(minimum)
        yield Finding(
            name=name,
            seen=f"{seen or 'missing'} (at least {minimum})",
            verdict="ok" if is_enough else "broken",
            advice="" if is_enough else f"pip install '{name}>={minimum}'",
        )


def _release(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, trailing zeros left out: 2.13.0+cpu is (2, 13)."""
    numbers = [int(part) for part in re.match(r"[0-9.]*", text)[0].strip(".").split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _guarded(name: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a look finds; what stops it is a finding too."""
    try:
        yield from look()
    except SpectuneError as error:
        yield Finding(name=name, seen=" ".join(str(error).split()), verdict="broken", advice="see the message")
    except (ImportError, OSError) as error:
        yield Finding(name=name, seen=str(error), verdict="broken", advice="install spectune anew")


def _devices() -> Iterator[Finding]:
    from ..profiler.device import detect_all

    devices = detect_all()
    for device in devices:
        facts = [device.label, *device.isa]
        if device.kind == "cuda":
            power = None if device.power_limit_w is None else f"{device.power_limit_w:.0f} W"
            known = (f"driver {device.driver}", f"CUDA up to {device.cuda}", f"sm {device.compute_capability}", power)
            facts.extend(fact for fact in known if fact)
        yield Finding(name=f"{device.kind} {device.fingerprint}", seen=", ".join(facts))
    if not any(device.kind == "cuda" for device in devices):
        yield Finding(
            name="NVML", seen="no NVIDIA driver or no visible GPU", verdict="note", advice="nothing, on a CPU"
        )


def _torch() -> Iterator[Finding]:
    import torch

    from ..profiler.device import detect_all

    devices = detect_all()
    build, threads, cores = torch.version.cuda, torch.get_num_threads(), devices[-1].cores or 1  # the CPU comes last
    has_gpu = any(device.kind == "cuda" for device in devices)
    yield Finding(
        name="torch build",
        seen=f"CUDA {build}" if build else "CPU only",
        verdict="note" if has_gpu and not torch.cuda.is_available() else "ok",
        advice="install a torch for CUDA to use the GPU" if has_gpu and not torch.cuda.is_available() else "",
    )
    yield Finding(
        name="torch threads",
        seen=f"{threads} of {cores} cores",
        verdict="note" if threads > cores else "ok",
        advice=f"set OMP_NUM_THREADS={cores} or less" if threads > cores else "",
    )


def _store(url: str | None) -> Iterator[Finding]:
    from ..db.store import open_store
    from ..db.url import resolve_url, shown, sqlite_file

    place = resolve_url(url)
    file = sqlite_file(place)
    if file is not None and not file.exists():
        yield _absent_store(file)
        return
    with open_store(url) as store:
        yield Finding(name="store", seen=f"{shown(place)}, {len(store.plans())} plans")


def _absent_store(file: Path) -> Finding:
    folder = next(parent for parent in file.parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        advice = "give another --store, or set SPECTUNE_STORE"
        return Finding(name="store", seen=f"{file} cannot be made: {folder}", verdict="broken", advice=advice)
    return Finding(name="store", seen=f"{file}, not there yet", verdict="note", advice="spectune profile makes it")
