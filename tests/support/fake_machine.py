"""A machine whose time is ours: forwards of chosen cost, disturbed as a test likes, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spectune.profiler.clock import Call
from spectune.profiler.domain import Shape
from spectune.profiler.records.device import Device

DEVICE = Device(kind="cpu", name="Test", index=0, memory_bytes=1, cores=1, threads=1)
Disturbance = Callable[[int], float]  # call number -> how many times slower it is
Cost = Callable[[Shape], float]


def smooth_ms(shape: Shape) -> float:
    """Return a cost that is straight in tokens and contexts."""
    batch, context, tokens = shape
    return batch * (10.0 + tokens + context / 100)


@dataclass
class FakeMachine:
    """A clock that only calls move, and the list of what ran on it."""

    disturbance: Disturbance = lambda _: 1.0
    time_ms_now: float = 0.0
    log: list[Shape] = field(default_factory=list)
    last_model: str = ""  # whose weights are in the caches

    def now_s(self) -> float:
        return self.time_ms_now / 1e3

    def time_ms(self, call: Call) -> float:
        start_ms = self.time_ms_now
        call()
        return self.time_ms_now - start_ms

    def spend(self, shape: Shape, cost_ms: float) -> None:
        self.time_ms_now += cost_ms * self.disturbance(len(self.log))
        self.log.append(shape)


@dataclass
class FakeRunner:
    """Forwards that take a chosen time of a fake machine."""

    machine: FakeMachine
    cost: Cost = smooth_ms
    identity: str = "model"
    role: str = "verify"
    regime: str = "eager"
    dtype: str = "float32"
    attention: str = "sdpa"
    too_large: int = 10**9  # tokens from which prepare raises
    stop_at: int = 10**9  # call number at which the user presses Ctrl-C
    breaks_at: int = 10**9  # call number from which forwards of 8 tokens raise

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Call:
        if tokens >= self.too_large:
            raise MemoryError("no room\nfor this shape")
        shape = (batch, context_tokens, tokens)
        return lambda: self._run(shape)

    def _run(self, shape: Shape) -> None:
        if len(self.machine.log) == self.stop_at:
            raise KeyboardInterrupt
        if len(self.machine.log) >= self.breaks_at and shape[2] == 8:
            raise RuntimeError("broken")
        self.machine.spend(shape, self.cost(shape))
        self.machine.last_model = self.identity
