"""Functions that are compiled when they are first called, so that importing them loads no compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Kernel(Generic[Arguments, Result]):
    """A function and, from the first call on, its machine code, which is kept beside the source file.

    Numba looks at a source file's own time stamp: after an edit of a helper in another file, clear `__pycache__`.
    """

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        self._function = function
        self._machine_code: Callable[Arguments, Result] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Run the machine code."""
        return (self._machine_code or self.compiled())(*args, **kwargs)

    def compiled(self) -> Callable[Arguments, Result]:
        """Return what numba makes of the function and of the kernels it calls."""
        from numba import njit  # heavy: loads LLVM

        if self._machine_code is None:
            names = self._function.__globals__
            for name in self._function.__code__.co_names:
                if isinstance(names.get(name), Kernel):
                    names[name] = names[name].compiled()  # numba must find its own kind of function there
            try:
                made = njit(cache=True, nogil=True)(self._function)
            except RuntimeError:  # neither this folder nor the user's own can be written: compile in every process
                made = njit(nogil=True)(self._function)
            self._machine_code = cast(Callable[Arguments, Result], made)
        return self._machine_code


def compiled(function: Callable[Arguments, Result]) -> Kernel[Arguments, Result]:
    """Return the function as a kernel."""
    return Kernel(function)
