"""What torch.cuda offers, of a pretended GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from .capture import Capture
from .device import PLACE, PretendedGpu, entered
from .kernels import interpreted_kernels

MS_PER_OPERATION = 0.01


class Event:
    """A place in the work that was given."""

    def __init__(self, **options: Any) -> None:
        self._work: int | None = None

    def record(self, stream: Any = None) -> None:
        self._work = entered().traffic.given

    def query(self) -> bool:
        return self._work is None or self._work <= entered().traffic.done

    def synchronize(self) -> None:
        if self._work is not None:
            entered().traffic.wait_for(self._work)

    def elapsed_time(self, later: Event) -> float:
        """Return the milliseconds between two events, as a GPU once both are over."""
        if not (self.query() and later.query()):
            raise RuntimeError("device not ready")
        assert self._work is not None and later._work is not None
        return MS_PER_OPERATION * (later._work - self._work)


class Stream:
    """One of many names for the order in which all work is done."""

    def __init__(self, device: Any = None) -> None:
        """Be of the one device there is, whatever `device` says."""
        self.device = PLACE

    def wait_stream(self, stream: Stream) -> None:
        """Do nothing: whatever was given before is done before."""

    def synchronize(self) -> None:
        entered().traffic.wait_for(entered().traffic.given)


class Graph:
    """Captured work."""

    def __init__(self) -> None:
        self.capture = Capture()

    def replay(self) -> None:
        entered().traffic.given += len(self.capture)
        self.capture.replay()


class Streams:
    """The streams and memory pools of one thread, as torch before 2.12 keeps them."""

    def __init__(self) -> None:
        self.usual = self.current = Stream()
        self._spoilt: set[object] = set()  # pools of captures that failed

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def take(self, stream: Stream) -> None:
        self.current = stream

    @contextmanager
    def capturing(self, graph: Graph, *, pool: object, stream: Stream, **options: Any) -> Iterator[None]:
        """Do what torch.cuda.graph does: wait for the device, then note what is given.

        A capture that fails cannot be ended: its stream stays the current one, and its pool cannot be captured into.
        """
        entered().traffic.wait_for(entered().traffic.given)
        if pool in self._spoilt:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        before, self.current = self.current, stream
        try:
            with entered().capturing(graph.capture):
                yield
        except Exception as error:
            self._spoilt.add(pool)
            raise RuntimeError("operation failed due to a previous error during capture") from error
        self.current = before

    def end_pool(self, device: int, pool: object) -> None:
        self._spoilt.remove(pool)


def _set_sync_debug_mode(mode: str) -> None:
    entered().traffic.may_wait = mode != "error"


@contextmanager
def pretended_gpu(processors: int = 132, *, has_kernels: bool = False) -> Iterator[PretendedGpu]:
    """Have a GPU for a while.

    Args:
        processors: of it.
        has_kernels: Triton's interpreter runs kernels on it (see kernels.py); else nobody compiles any for it.
    """
    streams = Streams()
    traits = SimpleNamespace(
        major=8,  # whose kernels do not begin early: no interpreter knows how
        minor=0,
        multi_processor_count=processors,
        L2_cache_size=50 << 20,
        total_memory=80 << 30,
    )
    stand_ins: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "_sleep": lambda cycles: None,
        "CUDAGraph": Graph,
        "current_stream": lambda device=None: streams.current,
        "default_stream": lambda device=None: streams.usual,
        "device": lambda device: nullcontext(),
        "Event": Event,
        "get_device_properties": lambda device: traits,
        "graph": streams.capturing,
        "graph_pool_handle": object,
        "is_current_stream_capturing": lambda: entered().traffic.is_capturing,
        "set_sync_debug_mode": _set_sync_debug_mode,
        "set_stream": streams.take,
        "Stream": Stream,
        "stream": streams.on,
        "synchronize": lambda device=None: streams.usual.synchronize(),
    }
    with ExitStack() as stack:
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor writes on the host first, and then copies
        for name, stand_in in stand_ins.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        stack.enter_context(mock.patch.object(torch._C, "_cuda_endAllocateToPool", streams.end_pool, create=True))
        if has_kernels:
            stack.enter_context(interpreted_kernels())
        else:
            stack.enter_context(mock.patch("spectune.runtime.models.kernels.jitted.has_triton", return_value=False))
        stack.enter_context(torch.inference_mode())  # gradients ask torch for devices that it was not built for
        yield stack.enter_context(PretendedGpu())
