"""Whether compiled loops may be shared among threads, and among how many."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import local
from typing import Any

from ....planner.kernels.compiled import launched_threads

MOST_ALONE = 2**13  # numbers that one thread norms or gates sooner than several are called
UNSAFE_LAYER = "workqueue"  # of numba's: it ends the process where two threads use it at once


class _Told(local):
    """The thread count that this thread last gave numba; to give it takes longer than a norm."""

    threads = 1


_TOLD = _Told()


def shared_by(threads: int) -> bool:
    """Return whether several threads share loops; sets numba's count for this thread, where `threads` changes."""
    if threads == 1:
        return False
    if threads == _TOLD.threads:
        return True
    tell = _teller()
    if tell is not None:
        tell(threads)
        _TOLD.threads = threads
    return tell is not None


def can_share(threads: int) -> bool:
    """Return whether kernels use that many threads where a loop is worth it; one always can."""
    return threads == 1 or _teller() is not None


@lru_cache
def _teller() -> Callable[[int], None] | None:
    """Return what sets numba's threads for this one, up to those it launched; None where none are safe."""
    import numba  # heavy: loads LLVM

    layers: Any = numba  # does not tell all that it exports
    most = launched_threads()
    if most is None:
        return None
    is_safe = layers.threading_layer() != UNSAFE_LAYER
    return (lambda threads: layers.set_num_threads(min(threads, most))) if is_safe else None
