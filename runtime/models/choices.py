"""The fastest of several ways to do the same work on this device, measured once per process.

It times what decoding will run: CUDA graphs, several layers' weights in turn, after other work that pushes these out of
the caches. A way loses if it fails, computes other numbers than the usual way, or is hardly faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from ..batch.transfer import fetched
from .capturing import capturing
from .kernels.jitted import launch_errors

BUSY_CYCLES = 50_000  # of a GPU: longer than a replay takes the host, so that only the device's part is timed
USUAL = 0  # the way that is taken where nothing else is known to be faster
LEAST_GAIN = 0.03  # of the usual way's time, for another to be taken
REPEATS = 7
LARGEST_ERROR = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # of the greatest number
Work = Callable[[], object]


class Rivals(Protocol):
    """Ways to do the same work, by their number; the first is the usual one."""

    def __len__(self) -> int:
        """How many ways there are."""

    def result(self, way: int) -> Tensor:
        """Do the work once; return its result."""

    def cycle(self, way: int) -> Work:
        """Return what does the work with several layers' weights in turn."""

    def between(self) -> object:
        """Do what decoding does before it reads these weights again."""


class Timer(Protocol):
    """Times work on one device."""

    def is_capturing(self) -> bool:
        """Whether launches are being captured now, so that nothing can be timed."""

    def times_ms(self, works: Sequence[Work], between: Work) -> list[float]:
        """Return the milliseconds of each work, run after `between` each time."""


class Choices:
    """The chosen ways, for as long as the process runs: the same work is always done the same way."""

    def __init__(self, timer: Timer | None) -> None:
        """Choose by a timer; without one always the usual way."""
        self.timer = timer
        self.kept: dict[Hashable, int] = {}  # the way of each work that was met

    def way(self, work: Hashable, rivals: Callable[[], Rivals]) -> int:
        """Return the way to do some work, measured where it is new and can be timed; equal works take equally long."""
        if self.timer is None:
            return USUAL
        if work not in self.kept:
            self.kept[work] = USUAL if self.timer.is_capturing() else fastest(rivals(), self.timer)
        return self.kept[work]


def fastest(rivals: Rivals, timer: Timer) -> int:
    """Return the number of the fastest way; the usual one unless another is clearly faster with the same result."""
    expected = rivals.result(USUAL)
    able = [way for way in range(1, len(rivals)) if _finds(expected, rivals, way)]
    if not able:
        return USUAL
    try:
        usual_ms, *times_ms = timer.times_ms([rivals.cycle(way) for way in (USUAL, *able)], rivals.between)
    except launch_errors():  # no memory for it, or nothing can be captured any more
        return USUAL
    least_ms, best = min(zip(times_ms, able, strict=True))
    return best if least_ms <= (1.0 - LEAST_GAIN) * usual_ms else USUAL


@lru_cache
def choices_of(device: torch.device) -> Choices:
    """Return the choices of a device, shared by all models on it; only a GPU's are measured."""
    return Choices(GraphTimer(device) if device.type == "cuda" else None)


def _finds(expected: Tensor, rivals: Rivals, way: int) -> bool:
    """Return whether a way runs here and has the expected numbers, but for their rounding."""
    try:
        found = rivals.result(way)
    except launch_errors():  # too large for this device, or Triton cannot compile it here
        return False
    apart, greatest = (found.float() - expected.float()).abs().max(), expected.float().abs().max()
    return bool(fetched(apart <= LARGEST_ERROR[expected.dtype] * greatest))


class GraphTimer:
    """Times work on a GPU from CUDA graphs, as decoding runs it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""
        return bool(torch.cuda.is_current_stream_capturing())

    def times_ms(self, works: Sequence[Work], between: Work) -> list[float]:
        """Return the median milliseconds of each work; each runs once before, so that no set-up is timed."""
        cuda: Any = torch.cuda  # Any: torch leaves these untyped
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream(self._device)
            is_default = current == torch.cuda.default_stream(self._device)  # which cannot be captured
            stream = cuda.Stream(self._device) if is_default else current
            stream.wait_stream(current)
            try:
                with torch.cuda.stream(stream):
                    graphs = [self._captured(work, stream) for work in works]
                    rounds = [[_timed(graph, between) for graph in graphs] for _ in range(1 + REPEATS)]
                    rounds[-1][-1][1].synchronize()
            finally:  # where one cannot be captured, too: others may have their memory next
                current.wait_stream(stream)
        times = [[start.elapsed_time(end) for start, end in taken] for taken in rounds[1:]]  # the first warms up
        return [statistics.median(own) for own in zip(*times, strict=True)]

    def _captured(self, work: Work, stream: Any) -> Any:
        work()  # on this very stream, where libraries may have to set themselves up
        cuda: Any = torch.cuda  # Any: torch leaves these untyped
        graph = cuda.CUDAGraph()
        with capturing(graph, stream, cuda.graph_pool_handle()):
            work()
        return graph


def _timed(graph: Any, between: Work) -> tuple[Any, Any]:
    """Replay a graph after other work; return the events before and after it."""
    cuda: Any = torch.cuda  # Any: torch leaves these untyped
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    between()
    cuda._sleep(BUSY_CYCLES)
    start.record()
    graph.replay()
    end.record()
    return start, end
