"""Read how a device is doing now, and say what happened to it between two moments."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DeviceError
from .cpu import allowed_cores, cpu_allowance, processor_here
from .nvml import read_gpu_state
from .records.device import Device
from .records.state import CpuTimes, DeviceState, OtherProcess

PROC = Path("/proc")
BUSY_COLUMNS = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq of a /proc/stat line
STOLEN_COLUMN = 7
NOTABLE_SHARE = 0.02  # of the time between two states; less is lost in the noise of a timing
HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting"})  # no slowing, or wanted


def read_state(device: Device) -> DeviceState:
    """Return a device's present state, in a tenth of a second for a CPU; DeviceError where a GPU does not answer."""
    if device.kind == "cuda":
        return read_gpu_state(device)
    cores = allowed_cores()
    clocks = [mhz for core, mhz in processor_here().clocks_mhz if core in cores]
    return DeviceState(
        device=device.fingerprint,
        processes=busy_processes(PROC),
        clock_mhz=sum(clocks) / len(clocks) if clocks else None,
        load_average=os.getloadavg()[0],
        cpu=_cpu_times(cores),
        read_at_s=time.time(),
    )


def disturbances(before: DeviceState, after: DeviceState) -> tuple[str, ...]:
    """Return what may have spoilt timings between two states, each in a sentence; empty if nothing was seen.

    Short disturbances show only where the system counts them: held-back, stolen, throttled and busy time. Another
    process on a GPU, or a throttle reason without a counter, is seen only at the ends. DeviceError where the states are
    of two devices.
    """
    if before.device != after.device:
        raise DeviceError(f"these are states of {before.device} and of {after.device}; give two states of one device")
    if before.read_at_s >= after.read_at_s:
        return ("the system's clock was set back meanwhile, so what disturbed the device is not known",)
    return (*_throttling(before, after), *_cpu_time(before, after), *_guests(before, after))


def core_seconds(text: str, cores: frozenset[int], ticks_per_s: int) -> tuple[float, float]:
    """Return the seconds some cores were busy and stolen by a hypervisor, from /proc/stat in ticks (USER_HZ)."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in text.splitlines()]
    counts = [[int(word) for word in words[1:]] for words in lines if words and words[0] in names]
    busy = sum(count[column] for count in counts for column in BUSY_COLUMNS)
    return busy / ticks_per_s, sum(count[STOLEN_COLUMN] for count in counts) / ticks_per_s


def _cpu_times(cores: frozenset[int]) -> CpuTimes | None:
    stat = PROC / "stat"
    if not stat.exists():
        return None
    allowance = cpu_allowance()
    busy_s, stolen_s = core_seconds(stat.read_text(), cores, os.sysconf("SC_CLK_TCK"))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return CpuTimes(
        cores=len(cores),
        busy_s=busy_s,
        stolen_s=stolen_s,
        own_pid=os.getpid(),
        own_s=sum(each.ru_utime + each.ru_stime for each in used),
        throttled=allowance.throttled,
        throttled_s=allowance.throttled_s,
    )


def _throttling(before: DeviceState, after: DeviceState) -> Iterator[str]:
    elapsed_s = after.read_at_s - before.read_at_s
    earlier = dict(before.held_back_s)
    for reason, total_s in after.held_back_s:
        if (held_s := total_s - earlier.get(reason, total_s)) > NOTABLE_SHARE * elapsed_s:
            yield f"throttled: the {reason} held the clocks back for {held_s:.1f} s of {elapsed_s:.1f} s"
    for reason in dict.fromkeys((*before.throttle_reasons, *after.throttle_reasons)):
        if reason not in HARMLESS:
            ends = [word for word, at in (("start", before), ("end", after)) if reason in at.throttle_reasons]
            yield f"throttled: {reason} at the {' and the '.join(ends)}"


def _cpu_time(before: DeviceState, after: DeviceState) -> Iterator[str]:
    """Yield who else had the processor; only a process that read both states knows its own share."""
    if before.cpu is None or after.cpu is None or before.cpu.own_pid != after.cpu.own_pid:
        return
    elapsed_s = after.read_at_s - before.read_at_s
    first, last = before.cpu, after.cpu
    if (times := (last.throttled or 0) - (first.throttled or 0)) > 0:
        lost_s = (last.throttled_s or 0.0) - (first.throttled_s or 0.0)
        yield f"throttled: the CPU quota stopped this process {times} times, {lost_s:.1f} s of {elapsed_s:.1f} s"
    granted_s = last.cores * elapsed_s
    if (stolen_s := last.stolen_s - first.stolen_s) > NOTABLE_SHARE * granted_s:
        yield f"the host of this virtual machine kept back {stolen_s / granted_s:.0%} of its CPU time"
    others_s = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
    if others_s > NOTABLE_SHARE * granted_s:
        yield f"other processes kept {others_s / elapsed_s:.2f} of {last.cores} cores busy"


def _guests(before: DeviceState, after: DeviceState) -> Iterator[str]:
    seen = {each.pid: each for state in (before, after) for each in state.processes}
    for process in seen.values():
        yield f"another process used the device: {process}"


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
