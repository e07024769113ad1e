"""Which other processes of this machine are busy, from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .records.state import OtherProcess

WINDOW_S = 0.1  # between two looks; the kernel counts in hundredths of a second
BUSY_CORES = 0.1
SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTimes:
    """What /proc/PID/stat says about one process."""

    pid: int
    name: str
    parent: int
    started: int  # with the pid, names the process for good
    ticks: int  # of CPU time so far


def busy_processes(proc: Path, window_s: float = WINDOW_S) -> tuple[OtherProcess, ...]:
    """Watch for a window, and return the (at most eight) other processes with a tenth of a core, busiest first."""
    start_s, first = time.monotonic(), process_times(proc)
    time.sleep(window_s)
    last, seconds = process_times(proc), time.monotonic() - start_s
    return busiest(first, last, seconds * os.sysconf("SC_CLK_TCK"), family_of(os.getpid(), last))


def busiest(
    first: Sequence[ProcessTimes], last: Sequence[ProcessTimes], ticks: float, ours: frozenset[int]
) -> tuple[OtherProcess, ...]:
    """Return who but us was busy between two looks, busiest first; a later process counts with all its time."""
    earlier = {(each.pid, each.started): each.ticks for each in first}
    used = [(each, (each.ticks - earlier.get((each.pid, each.started), 0)) / ticks) for each in last]
    busy = [pair for pair in used if pair[0].pid not in ours and pair[1] >= BUSY_CORES]
    busy.sort(key=lambda pair: -pair[1])
    return tuple(OtherProcess(pid=each.pid, name=each.name, cores=cores) for each, cores in busy[:SHOWN])


def process_times(proc: Path) -> list[ProcessTimes]:
    """Return the CPU time of every process; one that ends meanwhile is left out."""
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            found.append(_parsed((folder / "stat").read_text()))
        except OSError:
            continue
    return found


def family_of(pid: int, processes: Sequence[ProcessTimes]) -> frozenset[int]:
    """Return a process and all that descend from it."""
    family = {pid}
    while grown := {each.pid for each in processes if each.parent in family} - family:
        family |= grown
    return frozenset(family)


def _parsed(text: str) -> ProcessTimes:
    """Read one line of /proc/PID/stat; the name in brackets may itself hold brackets and spaces."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()  # from the state on, the third field of the manual page
    return ProcessTimes(
        pid=int(pid),
        name=name,
        parent=int(fields[1]),
        started=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
    )
