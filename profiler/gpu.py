"""The GPUs of this machine, as NVML describes them."""

from __future__ import annotations

import re

import pynvml

from .nvml import Handle, board_of, is_slice, nvml_session, optional, require_known_order, visible_handles
from .records.device import Device

MIG_IN_NAME = re.compile(r"\bMIG (\S+)$")  # "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


def read_gpus(libraries: tuple[tuple[str, str], ...]) -> tuple[Device, ...]:
    """Return the GPUs that CUDA may use, in the order of `visible_handles`; none without a driver.

    Raises:
        DeviceError: the driver does not answer, or CUDA_VISIBLE_DEVICES names a missing GPU.
    """
    with nvml_session() as is_there:
        if not is_there:
            return ()
        return tuple(_gpu(index, handle, libraries) for index, handle in enumerate(visible_handles()))


def find_gpu(index: int, libraries: tuple[tuple[str, str], ...]) -> Device | None:
    """Return the GPU that CUDA and PyTorch count as `index`, None where there are fewer.

    Raises:
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
