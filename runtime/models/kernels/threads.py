"""Whether compiled loops may be shared among threads, and among how many."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

SAFE_LAYERS = ("omppool", "tbbpool")  # of numba's; the third ends the process where two threads use it at once


def shared_by(threads: int) -> bool:
    """Return whether loops are to be shared by several threads, of which numba is told how many."""
    if threads == 1:
        return False
    tell = _teller()
    if tell is not None:
        tell(threads)
    return tell is not None


@lru_cache
def _teller() -> Callable[[int], None] | None:
    """Return what tells numba how many threads this one may use, no more than it has; None where none are safe."""
    if not any(_is_there(layer) for layer in SAFE_LAYERS):
        return None
    from numba import config, set_num_threads  # heavy: loads LLVM

    most = int(config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]  # has no types
    return lambda threads: set_num_threads(min(threads, most))


def _is_there(layer: str) -> bool:
    try:
        import_module(f"numba.np.ufunc.{layer}")
    except ImportError:
        return False
    return True
