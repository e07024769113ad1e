"""Each reading of a device, and the command of its vendor or system that shows the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..profiler.records.ceilings import Bandwidth
from ..profiler.records.device import Device
from ..profiler.records.state import DeviceState
from .inspection import Inspection

Verdict = Literal["ok", "note", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was seen and what to do; a note is worth knowing, what is broken keeps spectune from working."""

    name: str
    seen: str
    verdict: Verdict = "ok"
    advice: str = ""
    in_brief: str = ""  # what is printed for `seen`, unless more is asked for; the same where empty
    command: str = ""  # of the vendor or the system, that shows the same


NOT_TOLD = "not reported"
GIB = 2**30
CGROUP = "cat /sys/fs/cgroup/cpu.max || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us"
CGROUP_STAT = "cat /sys/fs/cgroup/cpu.stat || cat /sys/fs/cgroup/cpu/cpu.stat"
TORCH_THREADS = 'python -c "import torch; print(torch.get_num_threads())"'
GPU_PROCESSES = "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv"

Reading = tuple[str, object, str, str]  # (what, value or None, its unit, command)


def findings_of(found: Inspection) -> Iterator[Finding]:
    """Yield one line about the device, then one for each reading of it."""
    device = found.device
    yield Finding(name=f"{found.place} fingerprint", seen=f"{device.fingerprint}, {device.label}")
    is_cpu = device.kind == "cpu"
    identity, state = (
        (_cpu(device), _cpu_state(found.state)) if is_cpu else (_gpu(device), _gpu_state(device, found.state))
    )
    for what, value, unit, command in (*identity, *state):
        seen = NOT_TOLD if value is None or value == "" else f"{_shown(value)} {unit}".strip()
        yield Finding(name=f"{found.place} {what}", seen=seen, command=command)
    yield _bandwidth(found)
    yield _company(found)


def _cpu(device: Device) -> list[Reading]:
    return [
        ("model", device.name, "", "lscpu | grep 'Model name'"),
        ("sockets", device.sockets, "", "lscpu | grep 'Socket(s)'"),
        ("cores allowed", device.cores, "", "grep Cpus_allowed_list /proc/self/status"),
        ("quota", device.cpu_quota or "no limit", "cores" if device.cpu_quota else "", CGROUP),
        ("threads", device.threads, "", TORCH_THREADS),
        ("vector extensions", " ".join(device.isa), "", "lscpu | grep Flags"),
        ("native dtype", device.native_dtype, "", "lscpu | grep -o '[a-z0-9_]*bf16'"),
        ("memory", device.memory_bytes / GIB, "GiB", "grep MemTotal /proc/meminfo"),
    ]


def _cpu_state(state: DeviceState) -> list[Reading]:
    times = state.cpu
    return [
        ("clock", state.clock_mhz, "MHz", "grep MHz /proc/cpuinfo"),
        ("load average", state.load_average, "", "cat /proc/loadavg"),
        ("throttled by quota", times and times.throttled, "times", CGROUP_STAT),
        ("time kept back by the host", times and times.stolen_s, "s since start", "grep ^cpu /proc/stat"),
    ]


def _gpu(device: Device) -> list[Reading]:
    return [
        ("model", device.name, "", _query(device, "name")),
        ("uuid", device.uuid, "", "nvidia-smi -L"),
        ("memory", device.memory_bytes / GIB, "GiB", _query(device, "memory.total")),
        ("compute capability", device.compute_capability, "", _query(device, "compute_cap")),
        ("driver", device.driver, "", _query(device, "driver_version")),
        ("CUDA of the driver", device.cuda, "", "nvidia-smi | grep CUDA"),
        ("power limit", device.power_limit_w, "W", _query(device, "enforced.power.limit")),
        ("maximum SM clock", device.max_sm_clock_mhz, "MHz", _query(device, "clocks.max.sm")),
        ("maximum memory clock", device.max_memory_clock_mhz, "MHz", _query(device, "clocks.max.memory")),
        ("MIG profile", device.mig_profile or "a whole GPU", "", "nvidia-smi -L"),
    ]


def _gpu_state(device: Device, state: DeviceState) -> list[Reading]:
    held_back = ", ".join(f"{reason} {seconds:.1f} s" for reason, seconds in state.held_back_s)
    return [
        ("SM clock", state.clock_mhz, "MHz", _query(device, "clocks.sm")),
        ("memory clock", state.memory_clock_mhz, "MHz", _query(device, "clocks.mem")),
        (
            "throttle reasons",
            " ".join(state.throttle_reasons) or "none",
            "",
            _query(device, "clocks_event_reasons.active"),
        ),
        ("clocks held back so far", held_back, "", "nvidia-smi -q -d PERFORMANCE"),
        ("temperature", state.temperature_c, "C", _query(device, "temperature.gpu")),
        ("power", state.power_w, "W", _query(device, "power.draw")),
    ]


def _query(device: Device, field: str) -> str:
    """Return nvidia-smi's own query; it knows boards by uuid, not their slices."""
    board = f"-i {device.uuid} " if device.uuid and not device.mig_profile else ""
    return f"nvidia-smi {board}--query-gpu={field} --format=csv"


def _bandwidth(found: Inspection) -> Finding:
    is_cpu = found.device.kind == "cpu"
    return Finding(
        name=f"{found.place} memory bandwidth",
        seen="not measured" if found.bandwidth is None else _rate(found.bandwidth),
        verdict="note" if found.remark else "ok",
        advice=found.remark,
        command="likwid-bench -t stream -w S0:1GB" if is_cpu else "nvbandwidth -t device_local_copy",
    )


def _rate(bandwidth: Bandwidth) -> str:
    best, middle = bandwidth.bytes_per_s / 1e9, bandwidth.median_bytes_per_s / 1e9
    return f"{best:.1f} GB/s, the best of {len(bandwidth.repeats_ms)} passes; their median {middle:.1f} GB/s"


def _company(found: Inspection) -> Finding:
    others = found.state.processes
    return Finding(
        name=f"{found.place} other processes",
        seen=", ".join(str(each) for each in others) or "none",
        verdict="note" if others else "ok",
        advice="measure when they are done" if others else "",
        command="top -b -n 1" if found.device.kind == "cpu" else GPU_PROCESSES,
    )


def _shown(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
