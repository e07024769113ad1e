"""Transfers between the host and a device; a GPU's host waits only for values that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray


def sent(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array on a device; through pinned memory to a GPU, so that the host does not wait."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def fetched(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's numbers on the host; waits by an event, so that torch's sync debug mode can be "error"."""
    return fetched_together(tensor)[0]


def fetched_together(*tensors: torch.Tensor) -> list[NDArray[Any]]:
    """Return several tensors' numbers on the host, with one wait for their common device."""
    device = tensors[0].device
    if device.type != "cuda":
        return [tensor.cpu().numpy() for tensor in tensors]
    here = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # pinned by torch
    wait_for(device)
    return [tensor.numpy() for tensor in here]


def wait_for(device: torch.device) -> None:
    """Wait until a device has completed its work so far."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        event.synchronize()


def host_memory(like: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor like this on the host, pinned if a GPU reads or writes it."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.device.type == "cuda")


class Landing:
    """Memory, allocated at the first use, to which captured work always writes its result."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._make = make
        self._memory: torch.Tensor | None = None

    def __call__(self, found: torch.Tensor) -> torch.Tensor:
        """Copy a result to the memory without waiting, and return the memory."""
        if self._memory is None:
            self._memory = self._make(found)
        return self._memory.copy_(found, non_blocking=True)
