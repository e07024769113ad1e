"""What a pretended GPU has been given, how much of it is done, and what is on its way between it and the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class DeviceMistakeError(AssertionError):
    """What a GPU would refuse or, worse, would do silently wrong."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Numbers on their way to the host: what lies in their place is poison until they are waited for."""

    work: int  # how much the device had been given by then
    place: Tensor
    numbers: Tensor

    def arrive(self) -> None:
        self.place.copy_(self.numbers)


@dataclass(frozen=True, slots=True)
class Departure:
    """Numbers on their way from pinned memory, which the host must leave alone meanwhile."""

    work: int
    place: Tensor
    numbers: Tensor

    def arrive(self) -> None:
        if not torch.equal(_bytes(self.place), _bytes(self.numbers)):
            raise DeviceMistakeError("the host changed memory that was on its way to the device")


class Traffic:
    """A device as slow as can be: nothing is done before the host has waited for it."""

    def __init__(self) -> None:
        self.given = self.done = 0  # operations
        self.may_wait = True  # unasked
        self.is_capturing = False
        self._under_way: list[Landing | Departure] = []

    @property
    def departing_bytes(self) -> int:
        """What is on its way to the device."""
        return sum(one.place.nbytes for one in self._under_way if isinstance(one, Departure))

    def land(self, place: Tensor, numbers: Tensor) -> None:
        """Send numbers to the host."""
        poison(place)
        self._under_way.append(Landing(self.given, place, numbers.clone()))

    def depart(self, place: Tensor) -> None:
        """Send what lies in a place to the device."""
        self._under_way.append(Departure(self.given, place, place.clone()))

    def wait_unasked(self, what: str) -> None:
        """Wait as a side effect of something else, which `torch.cuda.set_sync_debug_mode` forbids."""
        if not self.may_wait:
            raise DeviceMistakeError(f"the host waits for the device: {what}")
        self.wait_for(self.given)

    def wait_for(self, work: int) -> None:
        """Return when so many operations are done."""
        if self.is_capturing:
            raise DeviceMistakeError("the host waits for a device that only notes what it is told")
        self.done = max(self.done, work)
        while self._under_way and self._under_way[0].work <= self.done:
            self._under_way.pop(0).arrive()


def poison(place: Tensor) -> None:
    """Write what nobody can take for a result."""
    if place.dtype == torch.bool:
        place.logical_not_()
    elif place.dtype.is_floating_point:
        place.fill_(torch.nan)
    else:
        place.fill_(torch.iinfo(place.dtype).min)


def _bytes(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1)).view(torch.uint8)
