"""Triton's kernels on a pretended GPU: its interpreter runs them on the host, and captures note them like all work.

Only in a process that Triton was first imported in as an interpreter (see `interpreted.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from spectune.runtime.models.kernels.jitted import DeviceFunction

from .device import OnDevice, entered
from .traffic import DeviceMistakeError

compiled = DeviceFunction.__getitem__


def _launcher(function: DeviceFunction, grid: tuple[int, ...]) -> Callable[..., None]:
    launch = compiled(function, grid)

    def run(*args: Any, **options: Any) -> None:
        strangers = [one for one in args if isinstance(one, Tensor) and not isinstance(one, OnDevice)]
        if strangers:
            raise DeviceMistakeError(f"{function.made()} is given memory of the host")
        numbers = [one.numbers if isinstance(one, OnDevice) else one for one in args]
        entered().launch(lambda: launch(*numbers, **options), [one for one in numbers if isinstance(one, Tensor)])

    return run


@contextmanager
def interpreted_kernels() -> Iterator[None]:
    """Have kernels launched on the pretended GPU for a while."""
    with mock.patch.object(DeviceFunction, "__getitem__", _launcher):
        yield
