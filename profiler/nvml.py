"""NVIDIA's management library: a session with it, its handles, and readings that a GPU may not have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pynvml

from ..errors import DeviceError
from .records.device import Device

Handle = Any  # NVML's own type; pynvml ships none
Answer = TypeVar("Answer")


@contextmanager
def nvml_session() -> Iterator[bool]:
    """Hold NVML open for a block; False where there is no driver, so no GPU.

    DeviceError where the driver does not answer, or a required reading in the block fails.
    """
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


def optional(read: Callable[..., Answer], *arguments: object) -> Answer | None:
    """Return a reading, or None where this GPU, driver or user cannot have it."""
    try:
        return read(*arguments)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_NotFound,
        pynvml.NVMLError_InvalidArgument,  # what some drivers say of a question about a MIG slice
    ):
        return None


def visible_handles() -> list[Handle]:
    """Return the handles of what CUDA may use, in PCI order or as CUDA_VISIBLE_DEVICES names them.

    MIG slices replace their GPU. CUDA may show only the first: name the slice to use in CUDA_VISIBLE_DEVICES.
    """
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        named = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    else:
        named = [_named(entry.strip()) for entry in wanted.split(",") if entry.strip() not in ("", "-1")]
    return [handle for given in named for handle in _slices(given)]


def require_known_order() -> None:
    """Raise DeviceError where numbers of GPUs of several models may mislead: CUDA counts the fastest first."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or all(
        entry.strip().startswith(("GPU-", "MIG-")) for entry in named
    ):
        return
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    models = sorted({pynvml.nvmlDeviceGetName(handle) for handle in handles})
    if len(models) > 1:
        raise DeviceError(
            f"the GPUs here are of several models ({', '.join(models)}), which CUDA counts otherwise than the driver; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPU- uuids in CUDA_VISIBLE_DEVICES"
        )


def handle_of(device: Device) -> Handle:
    """Return the handle of a GPU that was found before; raise DeviceError where it is missing."""
    handles = visible_handles()
    if device.uuid is not None:
        handles = [handle for handle in handles if pynvml.nvmlDeviceGetUUID(handle) == device.uuid]
    elif device.index < len(handles):
        handles = [handles[device.index]]
    if not handles:
        raise DeviceError(f"{device.label} is no longer here; check nvidia-smi -L and CUDA_VISIBLE_DEVICES")
    return handles[0]


def is_slice(handle: Handle) -> bool:
    """Say whether a handle is a MIG slice rather than a whole GPU."""
    return bool(optional(pynvml.nvmlDeviceIsMigDeviceHandle, handle))


def board_of(handle: Handle) -> Handle:
    """Return the whole GPU behind a handle: power, clocks and temperature are those of the board."""
    return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_slice(handle) else handle


def _named(entry: str) -> Handle:
    if entry.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(entry)
    if not entry.isdigit():
        raise DeviceError(f"CUDA_VISIBLE_DEVICES names {entry!r}; give numbers or full GPU- uuids from nvidia-smi -L")
    return pynvml.nvmlDeviceGetHandleByIndex(int(entry))


def _slices(handle: Handle) -> list[Handle]:
    if is_slice(handle):
        return [handle]
    current, _ = optional(pynvml.nvmlDeviceGetMigMode, handle) or (pynvml.NVML_DEVICE_MIG_DISABLE, None)
    if current != pynvml.NVML_DEVICE_MIG_ENABLE:
        return [handle]
    places = range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    slices = (optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place) for place in places)
    return [each for each in slices if each is not None]
