"""Functions that are compiled when they are first called, so that importing them loads no compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

from ...profiler.remembered import cache_folder

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Kernel(Generic[Arguments, Result]):
    """A function and, from the first call on, its machine code, which is kept in the cache folder.

    Numba looks at the time stamp of a function's own file alone, so the folder is named after all kernels' sources: an
    edit of a helper in another file is an edit of its callers, too.
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
        from numba import config, njit  # heavy: loads LLVM

        settings: Any = config  # has no types
        if self._machine_code is None:
            names = self._function.__globals__
            for name in self._function.__code__.co_names:
                if isinstance(names.get(name), Kernel):
                    names[name] = names[name].compiled()  # numba must find its own kind of function there
            folder, others = kernel_cache(), settings.CACHE_DIR
            settings.CACHE_DIR = folder or others
            try:
                made = njit(cache=folder is not None, nogil=True)(self._function)
            finally:
                settings.CACHE_DIR = others
            self._machine_code = cast(Callable[Arguments, Result], made)
        return self._machine_code


@lru_cache
def kernel_cache() -> str | None:
    """Return the folder of machine code that belongs to these very sources, None where none can be written."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    folder = cache_folder() / "kernels" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # every process then compiles for itself
    return str(folder)


def compiled(function: Callable[Arguments, Result]) -> Kernel[Arguments, Result]:
    """Return the function as a kernel."""
    return Kernel(function)
