"""Functions that Triton compiles for a GPU when they are first launched, so that importing them needs no Triton.

Triton's compiler looks names up in a function's module, those of annotations too. A module of such functions therefore
imports triton.language as `tl` for the type checker alone, and has it from the first launch on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

PROCESSORS = 132  # of a device that is no GPU, where Triton's interpreter runs


class DeviceFunction:
    """A function in Triton's language and, from the first launch on, what Triton makes of it."""

    def __init__(self, function: Callable[..., Any], plain: tuple[str, ...]) -> None:
        """Take a function; one that another calls is compiled into it.

        Args:
            function: at a module's top level.
            plain: integer arguments that change from launch to launch: no code is compiled for their divisors.
        """
        self._function, self._plain = function, plain
        self._made: Any = None  # Triton's own kind of function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Return what launches a grid of programs; all arguments go to each."""
        launcher: Callable[..., Any] = self.made()[grid]
        return launcher

    def made(self) -> Any:
        """Return the function as Triton knows it."""
        if self._made is None:
            names = self._function.__globals__
            names["tl"] = import_module("triton.language")  # heavy, and not everywhere
            for name in self._function.__code__.co_names:
                if isinstance(names.get(name), DeviceFunction):
                    names[name] = names[name].made()  # Triton must find its own kind of function there
            self._made = import_module("triton").jit(self._function, do_not_specialize=list(self._plain))
        return self._made


def on_device(*plain: str) -> Callable[[Callable[..., Any]], Any]:  # Any: ours is indexed, Triton's is called, too
    """Return what makes a device function, with the integer arguments that no code is compiled for."""
    return lambda function: DeviceFunction(function, plain)


@lru_cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def launch_errors() -> tuple[type[Exception], ...]:
    """Return what a launch raises where Triton cannot compile a function for a device, or the device cannot hold it."""
    errors: tuple[type[Exception], ...] = (RuntimeError,)
    return (*errors, import_module("triton.errors").TritonError) if has_triton() else errors


def runs_triton(device: torch.device) -> bool:
    """Return whether Triton compiles for a device."""
    return device.type == "cuda" and has_triton()


@lru_cache
def processors_of(device: torch.device) -> int:
    """Return the multiprocessors of a GPU."""
    if device.type != "cuda":
        return PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def power_of_two(number: int) -> int:
    """Return the least power of two that is no less: the lengths that Triton's tiles have."""
    return 1 << (number - 1).bit_length()
