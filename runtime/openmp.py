"""OpenMP's workers, which GNU's library holds for every thread that has ever run a parallel loop.

If all of them exceed the cores, they sleep between two loops instead of spinning. A thread that has loaded a model and
is idle suffices: on two cores another thread then decoded at a quarter of the speed, for good
(`benchmarks/threads.py`). So an idle thread ends its workers; its next loop makes new ones.

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
    """End the workers of the calling thread, in every GNU OpenMP that is loaded; other threads keep theirs."""
    if not _FORKED:
        for pause in _pauses(tuple(name in sys.modules for name in BRINGS_ONE)):
            pause(SOFT)


def let_workers_go_beside_others() -> None:
    """Do so only where other threads may compute, too: else it wastes a millisecond after every call."""
    if threading.active_count() > 1:
        let_workers_go()


@cache
def _pauses(_loaded: tuple[bool, ...]) -> tuple[Callable[[int], int], ...]:
    """Return the pause functions of all loaded libraries; `_loaded` changes when there may be new ones."""
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
