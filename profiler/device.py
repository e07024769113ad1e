"""Find out what this machine computes with: its CPU from the system, its GPUs from NVML."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from ..errors import DeviceError
from .cpu import read_cpu
from .gpu import find_gpu, read_gpus
from .records.device import Device

LIBRARIES = ("torch", "transformers", "numpy", "numba")  # what computes forwards and rounds
FORWARDS = "5"  # of our own code on a CPU; raised where it becomes so much faster that older measurements say nothing
BY_TILES = "6"  # the same on processors with a unit for matrices


def detect(spec: str = "auto") -> Device:
    """Return one device of this machine.

    "cuda:N" counts as PyTorch does, within CUDA_VISIBLE_DEVICES; "cuda" is the first. "auto" is the first GPU that an
    installed PyTorch can use, else the CPU.

    Raises:
        DeviceError: the name is unknown, the device is missing, or CUDA may mean another GPU by that number.
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
