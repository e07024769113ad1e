"""What the profiler needs from the floors above: forwards to time, and a place for finished cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self

from ..errors import MeasurementError
from .clock import Call
from .domain import Shape
from .records.role import require_regime, require_role
from .records.surface import LatencySurface
from .records.visit import Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceKey:
    """Which surface a cell belongs to; cells with equal keys form one surface."""

    device: str  # Device.fingerprint
    model: str  # ModelIdentity.key
    role: str
    regime: str
    dtype: str
    attention: str = ""  # the attention kernel, e.g. "sdpa"; "" where it is not known

    def __post_init__(self) -> None:
        require_role(self.role)
        require_regime(self.regime)
        if not (self.device and self.model and self.dtype):
            raise MeasurementError(f"{self}: device, model and dtype must not be empty")

    @classmethod
    def of(cls, surface: LatencySurface) -> Self:
        """Return the key of a surface's cells."""
        return cls(**{each.name: getattr(surface, each.name) for each in fields(cls)})


class ShapeRunner(Protocol):
    """Runs forwards of one model, as the decoder would, at any shape."""

    @property
    def identity(self) -> str:
        """ModelIdentity.key of the model."""
        ...

    @property
    def role(self) -> str:
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

    @property
    def attention(self) -> str:
        """Which kernel computes attention, e.g. "sdpa"."""
        ...

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Call:
        """Return a call that runs one forward of this shape, again and again at the same cost.

        Calls of all cells live together, so they should share large buffers. `tokens` include the root. What this or
        the call raises becomes the cell's failure.
        """
        ...


class CellValue(Protocol):
    """What knowing a cell is worth to a decision; the floor above brings it."""

    def worths(self, cost: Callable[[int, Shape], float | None]) -> Callable[[int, Shape], float]:
        """Return the worth of a shape of a surface: 0 none, 1 the decision depends on it; `cost` is in ms, or None."""
        ...


class Parts(Protocol):
    """Where a job puts what it has finished, so that a killed one can go on."""

    def part(self, name: str) -> str | None:
        """Return the document stored under a name, None where there is none yet."""
        ...

    def add_part(self, name: str, document: str) -> None:
        """Keep a document under a new name; it outlives the process once this returns."""
        ...


class MeasurementSink(Protocol):
    """Where timed calls go as they happen, and finished surfaces at the end."""

    def visits(self) -> Sequence[Visit]:
        """Return what an earlier, killed run of the same session has timed, by ordinal."""
        ...

    def add_visit(self, visit: Visit) -> None:
        """Keep one timed call; it outlives the process once this returns."""
        ...

    def finish_surfaces(self, surfaces: Sequence[LatencySurface]) -> None:
        """Keep every cell of the surfaces and drop the visits they were made of: all of it or nothing, once."""
        ...


class Journal(Parts, MeasurementSink, Protocol):
    """What a profile writes down as it goes."""
