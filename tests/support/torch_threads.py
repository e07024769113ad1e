"""torch's number of threads, which kernels on a CPU use as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads_of(count: int) -> Iterator[None]:
    """Let torch have so many threads for one block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
