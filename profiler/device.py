"""Find out what this machine computes with: its CPU from the system, its GPUs from NVML."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import pynvml

from ..errors import DeviceError
from .cpu import read_cpu
from .nvml import Handle, board_of, is_slice, nvml_session, optional, require_known_order, visible_handles
from .records.device import Device

LIBRARIES = ("torch", "transformers", "numpy", "numba")  # what computes forwards and rounds
FORWARDS = "5"  # of our own code on a CPU; raised where it becomes so much faster that older measurements say nothing
BY_TILES = "6"  # the same on processors with a unit for matrices


def detect(spec: str = "auto") -> Device:
    """Return one device of this machine.

    "cuda:N" counts as PyTorch does, within CUDA_VISIBLE_DEVICES; "cuda" is the first. "auto" is the first GPU that an
    installed PyTorch can use, else the CPU. DeviceError where the name is unknown, the device is missing, or CUDA may
    mean another GPU by that number.
    """
    libraries = library_versions()
    if spec == "auto":
        gpu = find_gpu(0, libraries) if _torch_has_cuda() else None
        return gpu or _cpu(libraries)
    if spec == "cpu":
        return _cpu(libraries)
    found = re.fullmatch(r"cuda(?::(\d+))?", spec)
    if not found:
        raise DeviceError(f"unknown device {spec!r}; use 'auto', 'cpu' or 'cuda:N', for example 'cuda:0'")
    gpu = find_gpu(int(found[1] or 0), libraries)
    if gpu is None:
        here = ", ".join(gpu.label for gpu in read_gpus(libraries)) or "no GPU"
        raise DeviceError(f"{spec} is not here (the driver shows {here}); use the device cpu, or check nvidia-smi")
    return gpu


def detect_all() -> tuple[Device, ...]:
    """Return every device of this machine: its GPUs in order, then the CPU."""
    libraries = library_versions()
    return (*read_gpus(libraries), _cpu(libraries))


def library_versions() -> tuple[tuple[str, str], ...]:
    """Return (name, version) of Python and of every installed library that computes."""
    versions = [("python", platform.python_version())]
    for name in LIBRARIES:
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:  # a GPU can be described without them
            continue
    return tuple(versions)


def _cpu(libraries: tuple[tuple[str, str], ...]) -> Device:
    """Return this machine's CPU; its libraries include our own version, which sets what our forwards take."""
    device = read_cpu(libraries)
    forwards = BY_TILES if "amx_bf16" in device.isa else FORWARDS
    return replace(device, libraries=(*libraries, ("spectune's forwards", forwards)))


def _torch_has_cuda() -> bool:
    """Return whether the installed PyTorch is built for GPUs; without PyTorch nothing is left out."""
    try:
        import torch
    except ModuleNotFoundError:
        return True
    return torch.version.cuda is not None


MIG_IN_NAME = re.compile(r"\bMIG (\S+)$")  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


def read_gpus(libraries: tuple[tuple[str, str], ...]) -> tuple[Device, ...]:
    """Return the GPUs that CUDA may use, in the order of `visible_handles`; none without a driver.

    DeviceError where the driver does not answer, or CUDA_VISIBLE_DEVICES names a missing GPU.
    """
    with nvml_session() as is_there:
        if not is_there:
            return ()
        return tuple(_gpu(index, handle, libraries) for index, handle in enumerate(visible_handles()))


def find_gpu(index: int, libraries: tuple[tuple[str, str], ...]) -> Device | None:
    """Return the GPU that CUDA and PyTorch count as `index`, None where there are fewer.

    DeviceError: as `read_gpus`, or CUDA may count the GPUs here in another order.
    """
    gpus = read_gpus(libraries)
    if index >= len(gpus):
        return None
    with nvml_session():
        require_known_order()
    return gpus[index]


def _gpu(index: int, handle: Handle, libraries: tuple[tuple[str, str], ...]) -> Device:
    board = board_of(handle)
    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(board)
    milliwatts = optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, board)
    return Device(
        kind="cuda",
        name=pynvml.nvmlDeviceGetName(handle),
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        compute_capability=f"{major}.{minor}",
        driver=pynvml.nvmlSystemGetDriverVersion(),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        power_limit_w=float(milliwatts) / 1000.0 if milliwatts else None,
        libraries=libraries,
        mig_profile=_mig_profile(handle) if is_slice(handle) else None,
        max_sm_clock_mhz=optional(pynvml.nvmlDeviceGetMaxClockInfo, board, pynvml.NVML_CLOCK_SM) or None,
        max_memory_clock_mhz=optional(pynvml.nvmlDeviceGetMaxClockInfo, board, pynvml.NVML_CLOCK_MEM) or None,
    )


def _mig_profile(handle: Handle) -> str:
    if found := MIG_IN_NAME.search(pynvml.nvmlDeviceGetName(handle)):
        return found[1]
    counted = pynvml.nvmlDeviceGetAttributes(handle)
    compute, gpu = counted.computeInstanceSliceCount, counted.gpuInstanceSliceCount
    return f"{compute} of {gpu} slices, {counted.multiprocessorCount} SMs, {counted.memorySizeMB} MiB"
