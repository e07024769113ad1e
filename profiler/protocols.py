"""What the profiler asks of the floors above: forwards to time, and a place for finished cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..errors import MeasurementError
from .clock import Call
from .records.measurement import Measurement
from .records.surface import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceKey:
    """Which surface a cell belongs to; cells with equal keys form one surface."""

    device: str  # Device.fingerprint
    model: str  # ModelIdentity.key
    role: Role
    regime: str
    dtype: str

    def __post_init__(self) -> None:
        if self.role not in ("verify", "draft"):
            raise MeasurementError(f"surface role is {self.role!r}; use 'verify' or 'draft'")
        if not (self.device and self.model and self.regime and self.dtype):
            raise MeasurementError(f"{self}: device, model, regime and dtype must not be empty")


class ShapeRunner(Protocol):
    """Runs forwards of one model as the decoder would, at any shape asked for."""

    @property
    def identity(self) -> str:
        """ModelIdentity.key of the model."""
        ...

    @property
    def role(self) -> Role:
        """What the forwards are for."""
        ...

    @property
    def regime(self) -> str:
        """How they run: "eager", "compiled", "cuda-graph"."""
        ...

    @property
    def dtype(self) -> str:
        """Number format of the weights, e.g. "float32"."""
        ...

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Call:
        """Return a call that runs one forward of this shape, again and again at the same cost.

        The calls of all cells stay alive together, so they should share their large buffers.

        Args:
            batch: sequences.
            context_tokens: tokens per sequence already in the cache.
            tokens: tokens per sequence fed to the forward, root included.

        Raises:
            Exception: the shape cannot run; its message becomes the cell's failure. The call may raise likewise.
        """
        ...


class MeasurementSink(Protocol):
    """Where finished cells go."""

    def add(self, surface: SurfaceKey, measurement: Measurement) -> None:
        """Keep one cell of a surface."""
        ...
