"""How the C library hands out memory, so that a service that runs for months does not grow.

Many threads make answers and plans of tens of KiB that live minutes to hours. glibc's heap per thread cannot return
what stays between them. With two heaps, and pieces from 32 KiB on mapped each by itself, nothing grows.
"""

from __future__ import annotations

import ctypes
import os

HEAPS, MAPPED_BYTES = 2, 32 * 1024
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # <malloc.h> of glibc
OWN_WORDS = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_")  # in the environment, by whoever runs the service


def bound_heaps() -> bool:
    """Ask glibc for few heaps and large pieces apart, before threads start; return whether it was done.

    It is not where the environment already says how, and not without glibc. Source: mallopt(3).
    """
    if any(word in os.environ for word in OWN_WORDS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS; Windows
        return False
    return all(
        mallopt(option, value) == 1 for option, value in ((M_ARENA_MAX, HEAPS), (M_MMAP_THRESHOLD, MAPPED_BYTES))
    )
