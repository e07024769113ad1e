"""Functions that Triton compiles for a GPU at their first launch, so that their import needs no Triton.

Its compiler looks names up in a function's module, those of annotations too. So such a module imports triton.language
as `tl` for the type checker alone, and has it from the first launch on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from subprocess import SubprocessError
from typing import TYPE_CHECKING, Any

import torch

from ...batch.faults import is_out_of_memory

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

PROCESSORS = 132  # of a device that is no GPU, where Triton's interpreter runs
NO_COMPILER = "Triton cannot compile here, so slower kernels run; it needs a C compiler and Python's headers"


class DeviceFunction:
    """A function in Triton's language and, from the first launch on, Triton's form of it."""

    def __init__(self, function: Callable[..., Any], plain: tuple[str, ...], unaligned: tuple[str, ...]) -> None:
        """Take a function at a module's top level; those that it calls are compiled into it."""
        self._function, self._plain, self._unaligned = function, plain, unaligned
        self._made: Any = None  # Triton's own kind of function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Return what launches a grid of programs; all arguments go to each."""
        launcher: Callable[..., Any] = self.made()[grid]
        return launcher

    def made(self) -> Any:
        """Return Triton's form of the function."""
        if self._made is None:
            names = self._function.__globals__
            names["tl"] = import_module("triton.language")  # heavy, and not everywhere
            for name in self._function.__code__.co_names:
                if isinstance(names.get(name), DeviceFunction):
                    names[name] = names[name].made()  # Triton must find its own kind of function there
            self._made = import_module("triton").jit(
                self._function,
                do_not_specialize=list(self._plain),
                do_not_specialize_on_alignment=list(self._unaligned),
            )
        return self._made


def on_device(
    *plain: str, unaligned: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Any]:  # Any: ours is indexed, Triton's is called, too
    """Return what makes a device function, with the arguments that no code is compiled for; see `DeviceFunction`."""
    return lambda function: DeviceFunction(function, plain, unaligned)


@lru_cache
def has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def launch_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a launch where Triton cannot compile for a device, or the device has no room."""
    errors: tuple[type[Exception], ...] = (RuntimeError,)
    return (*errors, import_module("triton.errors").TritonError) if has_triton() else errors


def runs_triton(device: torch.device) -> bool:
    """Return whether Triton compiles for a device; warns once where it is installed and does not."""
    return device.type == "cuda" and has_triton() and compiles_for(device)


@lru_cache
def compiles_for(device: torch.device) -> bool:
    """Return whether Triton can compile here: it needs a C compiler and Python's headers, which slim images lack.

    Short memory raises RuntimeError: it answers nothing, and is not cached.
    """
    place = torch.zeros(1, dtype=torch.int32, device=device)
    of_a_driver: tuple[type[Exception], ...] = (OSError, SubprocessError, AssertionError, ImportError)
    try:
        with torch.cuda.device(device):
            _write_one[(1,)](place)
    except (*launch_errors(), *of_a_driver) as error:
        if is_out_of_memory(error):
            raise
        first_line = str(error).strip().partition("\n")[0]
        warnings.warn(f"{NO_COMPILER} ({first_line})", RuntimeWarning, stacklevel=2)
        return False
    return True


@on_device()
def _write_one(place: tl.tensor) -> None:
    tl.store(place, 1)


@lru_cache
def processors_of(device: torch.device) -> int:
    """Return the multiprocessors of a GPU."""
    if device.type != "cuda":
        return PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def power_of_two(number: int) -> int:
    """Return the least power of two that is no less: Triton's tiles have such lengths."""
    return 1 << (number - 1).bit_length()
