"""OpenMP's workers, which GNU's library keeps for every thread that has ever run a loop in parallel.

Where all of them together are more than there are cores, they sleep between two loops instead of waiting for the next
one. A thread that has loaded a model and does nothing any more is enough for that: on two cores another one then
decoded at a quarter of the speed, for good (`benchmarks/threads.py`). So whoever is done for now lets its workers go;
its next loop makes new ones.

Source: OpenMP API 5.0, Sec. 3.2.44, omp_pause_resource_all; GNU libgomp, `gomp_managed_threads`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

MAPPED = Path("/proc/self/maps")
BRINGS_ONE = ("torch", "numba.np.ufunc.omppool")  # modules with a library each, numba's is the system's
SOFT = 1  # what was set for threads stays
_FORKED: list[bool] = []  # not empty in a process whose parent may have had workers, which are not in it


def let_workers_go() -> None:
    """End the workers of the calling thread, in every GNU OpenMP that is loaded; other threads keep theirs.

    A forked process is left alone: its library would wait for workers that are in its parent.
    """
    if not _FORKED:
        for pause in _pauses(tuple(name in sys.modules for name in BRINGS_ONE)):
            pause(SOFT)


def let_workers_go_beside_others() -> None:
    """Do so where other threads may compute, too; a millisecond behind every call is much to pay for nothing."""
    if threading.active_count() > 1:
        let_workers_go()


@cache
def _pauses(_loaded: tuple[bool, ...]) -> tuple[Callable[[int], int], ...]:
    """Return what ends workers, of every library that is in this process; the modules say when there are others."""
    try:
        lines = MAPPED.read_text(errors="surrogateescape").splitlines()
    except OSError:  # no Linux, or one that does not tell
        return ()
    found: list[Callable[[int], int]] = []
    for file in sorted({line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line}):
        try:
            found.append(ctypes.CDLL(file).omp_pause_resource_all)
        except (OSError, AttributeError):  # one from before OpenMP 5.0
            continue
    return tuple(found)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _FORKED.append(True))
