"""Numbers on their way between the host and a device: a GPU's host waits only where it has to know."""

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
    """Return a tensor's numbers on the host: what a round has to wait for, and waits for by an event of its own.

    So torch's own check for waits nobody meant, `torch.cuda.set_sync_debug_mode`, can stand at "error" all the time.
    """
    return fetched_together(tensor)[0]


def fetched_together(*tensors: torch.Tensor) -> list[NDArray[Any]]:
    """Return several tensors' numbers on the host, of one device; it is waited for once."""
    device = tensors[0].device
    if device.type != "cuda":
        return [tensor.cpu().numpy() for tensor in tensors]
    here = [tensor.to("cpu", non_blocking=True) for tensor in tensors]  # pinned by torch
    wait_for(device)
    return [tensor.numpy() for tensor in here]


def wait_for(device: torch.device) -> None:
    """Return when a device has done what it was given until now."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        event.synchronize()


def host_memory(like: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape and kind on the host, pinned where a GPU reads or writes it."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.device.type == "cuda")


class Landing:
    """Memory that what captured work says is always written to; made for the first that comes."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Make it by `make`, of a tensor of the shape and kind that will come."""
        self._make = make
        self._memory: torch.Tensor | None = None

    def __call__(self, found: torch.Tensor) -> torch.Tensor:
        """Return the memory, with what was found in it once the device has come so far."""
        if self._memory is None:
            self._memory = self._make(found)
        return self._memory.copy_(found, non_blocking=True)
