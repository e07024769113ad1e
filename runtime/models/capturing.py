"""Capturing work as a CUDA graph, undisturbed by what else the process does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

OWN_THREAD = "thread_local"  # whose calls may spoil a capture: other threads use the device as they please


@contextmanager
def capturing(graph: Any, stream: Any, pool: Any = None) -> Iterator[None]:
    """Capture what is launched on a stream, while no garbage is collected.

    A collection may let go of memory that the host shares with the device. Its allocator then asks the device how far
    it is, on the stream that is captured: the capture would end with an error, somewhere else.

    Args:
        graph: torch.cuda.CUDAGraph.
        stream: torch.cuda.Stream, no default one.
        pool: of memory, which graphs may share; its own where None.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=OWN_THREAD):
            yield
    finally:
        if collects:
            gc.enable()
