"""Capturing work as a CUDA graph, undisturbed by the rest of the process."""

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
    """Capture what is launched on a stream, no default one, with garbage collection off.

    A failed capture raises the error of the work and spoils its pool, and later captures go on. torch would raise that
    the capture was spoilt, and stay on the stream of a capture that it cannot end; before 2.12 it also holds that
    capture's memory pool (pytorch#180395) and takes random numbers for part of it (pytorch#176752).
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
    """Let a GPU's random numbers be drawn outside captures again: a copy of their state belongs to no capture."""
    generators: Any = torch.cuda.default_generators  # Any: torch leaves these untyped
    if index < len(generators):
        generators[index].graphsafe_set_state(generators[index].clone_state())


class _Uncollected:
    """Garbage collection is off while any thread is inside.

    A collection may free memory that the host shares with the device. Its allocator then queries the device on the
    captured stream, and the capture ends with an error somewhere else.
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
