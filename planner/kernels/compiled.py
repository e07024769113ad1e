"""Functions that are compiled when first called, so that importing them loads no compiler."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import cached_property, lru_cache, update_wrapper
from pathlib import Path
from threading import RLock
from types import CodeType
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import numpy as np

from ...profiler.remembered import cache_folder

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

ZERO = cast(int, np.int64(0))  # for kernels: what a literal 0 is handed to is compiled once more, with all below it

NOT_KEPT = "no compiled object yet"  # numba of what it cannot keep; seen where many processes compile at once

_COMPILING = RLock()  # kernels compile the kernels they call; numba's settings are the process's
_SHARING: set[int] = set()  # ids of machine code whose loops may be shared by threads, or that of kernels that it calls
_KEYS: dict[int, str] = {}  # what machine code was made of, by its id


class Kernel(Generic[Arguments, Result]):
    """A function and, from the first call on, its machine code, which is stored in the cache folder.

    Numba checks the time stamp of a function's own file alone. So the folder's name is a hash of the function, the
    kernels that it calls and the constants they read, with their files: an edit of a helper elsewhere recompiles its
    callers.
    """

    def __init__(self, function: Callable[Arguments, Result], **options: Any) -> None:  # Any: as numba.njit takes them
        self._function, self._options = function, options
        self._machine_code: Callable[Arguments, Result] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Run the machine code."""
        try:
            return (self._machine_code or self.compiled())(*args, **kwargs)
        except RuntimeError as error:
            require_not_kept(error)
            return self.compiled()(*args, **kwargs)  # nothing has run yet

    def compiled(self) -> Callable[Arguments, Result]:
        """Return numba's dispatcher of the function and of the kernels it calls."""
        with _COMPILING:
            key, made = self.key, self._made()
            _KEYS[id(made)] = key
            return made

    @cached_property
    def key(self) -> str:
        """A hash of the sources of the kernel, those it calls, and their constants."""
        code, names = self._function.__code__, self._function.__globals__
        literals = [one for one in code.co_consts if not isinstance(one, CodeType)]
        settings = code.co_names, code.co_varnames, literals, sorted(self._options)
        told = [_written_in(code.co_filename), code.co_code.hex(), repr(settings)]
        for name in code.co_names:
            value = names.get(name)
            if isinstance(value, Kernel) and value is not self:
                told.append(value.key)
            elif id(value) in _KEYS:
                told.append(_KEYS[id(value)])
            elif isinstance(value, type):
                told.append(repr((name, inspect.get_annotations(value))))
            elif isinstance(value, int | float | str | tuple | np.generic):
                told.append(repr((name, value)))
        return hashlib.sha256("\n".join(told).encode()).hexdigest()

    def load(self, *args: Any) -> None:  # Any: those of a call, none by name
        """Compile or load machine code for arguments like these; nothing is run."""
        import numba  # heavy: loads LLVM

        kinds: Any = numba  # has no types
        with _COMPILING:
            made: Any = self.compiled()  # numba's own kind of function
            types = tuple(kinds.typeof(argument) for argument in args)
            try:
                made.compile(types)
            except RuntimeError as error:
                require_not_kept(error)
                made.compile(types)

    def _made(self) -> Callable[Arguments, Result]:
        from numba import config, njit, prange  # heavy: loads LLVM

        settings: Any = config  # has no types
        if self._machine_code is None:
            names = self._function.__globals__
            called = self._function.__code__.co_names
            for name in called:
                if isinstance(names.get(name), Kernel):
                    names[name] = names[name].compiled()  # numba must find its own kind of function there
            is_sharing = bool(self._options.get("parallel")) or any(id(names.get(name)) in _SHARING for name in called)
            if self._options.get("parallel"):
                names["prange"] = prange
            if is_sharing:
                launched_threads()
            folder, others = kernel_cache(self.key), settings.CACHE_DIR
            settings.CACHE_DIR = folder or others
            try:
                made = njit(cache=folder is not None, nogil=True, **self._options)(self._function)
            finally:
                settings.CACHE_DIR = others
            self._machine_code = cast(Callable[Arguments, Result], made)
            _SHARING.update({id(made)} if is_sharing else ())
        return self._machine_code


def require_not_kept(error: RuntimeError) -> None:
    """Raise numba's error, unless it only says that compiled code cannot be cached."""
    if NOT_KEPT not in str(error):
        raise error


@lru_cache
def launched_threads() -> int | None:
    """Launch numba's threads; return their number, None where numba has no threading layer.

    Otherwise cached machine code may call them by null pointers: numba records that a function needs them, but not
    always of a caller compiled after that function was read from the cache.

    Launching sets OpenMP's number of threads, and so torch's, to numba's; torch's is set back.
    """
    import numba  # heavy: loads LLVM

    layers: Any = numba  # does not tell all that it exports
    torch: Any = sys.modules.get("torch")  # where nobody has loaded it, nobody has told it anything
    before = None if torch is None else torch.get_num_threads()
    try:
        most: int = layers.get_num_threads()  # loads the layer that numba's settings and the libraries here leave
    except ValueError:  # there is none; then nothing is shared
        return None
    finally:
        if before is not None:
            torch.set_num_threads(before)
    return most


@lru_cache
def _written_in(file: str) -> str:
    """Return a hash of a file, "" without one: numba reads which classes it was compiled for before stamps."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@lru_cache
def kernels_folder() -> Path:
    """Return the folder of all machine code, fixed at the first call."""
    return cache_folder() / "kernels"


def kernel_cache(key: str) -> str | None:
    """Return the folder of a key's machine code, None if none is written."""
    folder = kernels_folder() / key[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None  # every process then compiles for itself
    return str(folder)


@overload
def compiled(function: Callable[Arguments, Result]) -> Kernel[Arguments, Result]: ...


@overload
def compiled(**options: Any) -> Callable[[Callable[Arguments, Result]], Kernel[Arguments, Result]]: ...


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return the function as a kernel, or a decorator with numba's options."""
    return Kernel(function, **options) if function is not None else lambda given: Kernel(given, **options)
