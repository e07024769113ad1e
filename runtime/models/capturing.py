"""Capturing work as a CUDA graph, undisturbed by what else the process does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import torch

OWN_THREAD = "thread_local"  # whose calls may spoil a capture: other threads use the device as they please


@contextmanager
def capturing(graph: Any, stream: Any, pool: Any) -> Iterator[None]:
    """Capture what is launched on a stream, while no garbage is collected.

    Where the work cannot be captured, the error is what it raised, and later captures go on: torch, whose error would
    be that the capture was spoilt, stays on the stream of one that it cannot end, and versions before 2.12 keep its
    memory pool for it, too (pytorch#180395), and take random numbers for part of it (pytorch#176752).

    Args:
        graph: torch.cuda.CUDAGraph.
        stream: torch.cuda.Stream, no default one.
        pool: of memory, which graphs may share, but none with one whose capture failed.
    """
    before = torch.cuda.current_stream(stream.device)
    raised: Exception | None = None
    try:
        with _UNCOLLECTED, torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode=OWN_THREAD):
            try:
                yield
            except Exception as error:
                raised = error
                raise
    except Exception:
        torch.cuda.set_stream(before)
        with suppress(RuntimeError):  # where torch has let go of it
            torch._C._cuda_endAllocateToPool(stream.device.index, pool)
        _end_drawing(stream.device.index)
        if raised is not None:
            raise raised from None
        raise


def _end_drawing(index: int) -> None:
    """Let a GPU's random numbers be drawn outside captures again: a copy of their state is in none."""
    generators: Any = torch.cuda.default_generators  # Any: torch leaves these untyped
    if index < len(generators):
        generators[index].graphsafe_set_state(generators[index].clone_state())


class _Uncollected:
    """While any thread is in it, no garbage is collected.

    A collection may let go of memory that the host shares with the device. Its allocator then asks the device how far
    it is, on the stream that is captured: the capture would end with an error, somewhere else.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._collects = Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._collects = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._collects:
                gc.enable()


_UNCOLLECTED = _Uncollected()
