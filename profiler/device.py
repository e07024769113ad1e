"""Find out what this machine computes with: its CPU from the system, its GPUs from NVML."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pynvml

from ..errors import DeviceError
from .records.device import Device

# the vector extensions that choose between kernels; /proc/cpuinfo's names, x86 then Arm
FAST_ISA = (
    *("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
LIBRARIES = ("torch", "transformers")


def detect(spec: str = "auto") -> Device:
    """Return one device of this machine.

    Args:
        spec: "cpu", "cuda:N" (N counts as PyTorch does, within CUDA_VISIBLE_DEVICES), or "auto":
            the first GPU that the installed PyTorch can use, else the CPU.

    Raises:
        DeviceError: the name is unknown or the device is not there.
    """
    if spec == "auto":
        gpus = _gpus()
        return gpus[0] if gpus and _torch_has_cuda() else _cpu()
    if spec == "cpu":
        return _cpu()
    found = re.fullmatch(r"cuda:(\d+)", spec)
    if not found:
        raise DeviceError(f"unknown device {spec!r}; use 'auto', 'cpu' or 'cuda:N', for example 'cuda:0'")
    gpus = _gpus()
    if int(found[1]) >= len(gpus):
        here = ", ".join(gpu.label for gpu in gpus) or "no GPU"
        raise DeviceError(f"{spec} is not here (the driver shows {here}); use --device cpu, or check nvidia-smi")
    return gpus[int(found[1])]


def detect_all() -> tuple[Device, ...]:
    """Return every device of this machine: its GPUs in order, then the CPU."""
    return (*_gpus(), _cpu())


def read_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the processor's name and its speed-relevant vector extensions, in FAST_ISA's order.

    Args:
        text: the contents of /proc/cpuinfo; its first processor counts.
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    arm = " ".join(f"{key} {fields[key]}" for key in ("CPU implementer", "CPU part") if key in fields)
    name = fields.get("model name") or arm or platform.processor() or platform.machine()
    return name, tuple(extension for extension in FAST_ISA if extension in flags)


def _cpu() -> Device:
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    name, isa = read_cpuinfo(cpuinfo.read_text() if cpuinfo.exists() else "")
    return Device(
        kind="cpu",
        name=name,
        index=0,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cores=_allowed_cores(),
        threads=torch.get_num_threads(),
        isa=isa,
        libraries=_libraries(),
    )


def _allowed_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _libraries() -> tuple[tuple[str, str], ...]:
    versions = [("python", platform.python_version())]
    for name in LIBRARIES:
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:  # a GPU can be described without them
            continue
    return tuple(versions)


def _torch_has_cuda() -> bool:
    import torch

    return torch.version.cuda is not None


def _gpus() -> tuple[Device, ...]:
    with _nvml() as is_there:
        if not is_there:
            return ()
        return tuple(_gpu(index, handle) for index, handle in enumerate(_visible_handles()))


@contextmanager
def _nvml() -> Iterator[bool]:
    """Hold NVML open for a block; False where there is no driver, so no GPU."""
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield False
        return
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver does not answer ({error}); check nvidia-smi") from error
    try:
        yield True
    except pynvml.NVMLError as error:
        raise DeviceError(f"a GPU cannot be read ({error}); check nvidia-smi and CUDA_VISIBLE_DEVICES") from error
    finally:
        pynvml.nvmlShutdown()


def _visible_handles() -> list[object]:
    """Return NVML's handles in the order PyTorch counts: PCI order, or what CUDA_VISIBLE_DEVICES names."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [_handle(entry.strip()) for entry in wanted.split(",") if entry.strip() not in ("", "-1")]


def _handle(entry: str) -> object:
    if entry.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(entry)
    if not entry.isdigit():
        raise DeviceError(f"CUDA_VISIBLE_DEVICES names {entry!r}; give numbers or full GPU- uuids from nvidia-smi -L")
    return pynvml.nvmlDeviceGetHandleByIndex(int(entry))


def _gpu(index: int, handle: object) -> Device:
    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device(
        kind="cuda",
        name=pynvml.nvmlDeviceGetName(handle),
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        compute_capability=f"{major}.{minor}",
        driver=pynvml.nvmlSystemGetDriverVersion(),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        power_limit_w=_power_limit_w(handle),
        libraries=_libraries(),
    )


def _power_limit_w(handle: object) -> float | None:
    try:
        return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000.0
    except pynvml.NVMLError_NotSupported:  # a MIG slice and some laptops have none
        return None
