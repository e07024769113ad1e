"""What a store promises of measurements: devices, models, surfaces, host times, traces and profiles under way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..profiler.protocols import Journal, SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface

if TYPE_CHECKING:
    from .imports import Records
    from .surface_rows import SurfaceRow
    from .traces import TraceRow


class OpenProfile(Journal, Protocol):
    """What one open profile has done so far; written down as it goes, finished once."""

    @property
    def profile_id(self) -> int:
        """Its number in the store."""
        ...

    @property
    def is_resumed(self) -> bool:
        """Whether an earlier run began it."""
        ...

    def finish(
        self,
        *,
        overhead: RoundOverhead | None = None,
        traces: Sequence[AcceptanceTrace] = (),
        pairwise: Sequence[PairwiseAcceptance] = (),
    ) -> None:
        """Store all but surfaces, mark the profile finished, drop its parts: all or nothing. StoreError if not open."""
        ...


class RecordStore(Protocol):
    """What was measured; see `SqlStore`, which says more of each method."""

    def add_device(self, device: Device) -> None:
        """Keep a device; what its fingerprint leaves out (its index, say) is updated."""
        ...

    def devices(self) -> list[Device]:
        """Return every device that can be read, in the order they were first added."""
        ...

    def add_model(self, model: ModelIdentity) -> None:
        """Keep a model; what its key leaves out (its name and location, say) is updated."""
        ...

    def models(self) -> list[ModelIdentity]:
        """Return every model that can be read, in the order they were first added."""
        ...

    def find_model(self, key: str) -> ModelIdentity | None:
        """Return the model with these weights, None where the store does not know it."""
        ...

    def add_measurements(self, surface: SurfaceKey, measurements: Sequence[Measurement]) -> None:
        """Keep cells of one surface, raw repeats and failures included; all of them or, after an error, none."""
        ...

    def surfaces(
        self,
        device: str | None = None,
        model: str | None = None,
        dtype: str | None = None,
        *,
        role: str | None = None,
        regime: str | None = None,
        attention: str | None = None,
    ) -> list[LatencySurface]:
        """Return one surface per key, of each batch the cells that the newest profile timed."""
        ...

    def surface_rows(
        self, limit: int | None = None, after: int | None = None, *, device: str | None = None
    ) -> list[SurfaceRow]:
        """Return what the store says about surfaces that have timings, in the order they were first measured."""
        ...

    def add_overhead(self, overhead: RoundOverhead) -> None:
        """Keep the host time per round of one target on one device."""
        ...

    def overhead(self, device: str, target: str, dtype: str, regime: str | None = None) -> RoundOverhead | None:
        """Return the newest host times of a target on a device and in a regime; None where never measured."""
        ...

    def host_times(self, device: str, target: str, dtype: str, regime: str | None = None) -> list[RoundOverhead]:
        """Return the records that `overhead` joins, newest first."""
        ...

    def add_trace(self, trace: AcceptanceTrace) -> None:
        """Keep one drafter's recording."""
        ...

    def traces(self, target: str, workload: str, temperature: float) -> list[AcceptanceTrace]:
        """Return the newest trace of every drafter recorded for a setup, oldest recording first."""
        ...

    def trace_rows(self, limit: int | None = None, after: int | None = None) -> list[TraceRow]:
        """Return what the store says about traces, oldest first."""
        ...

    def trace(self, trace_id: int) -> AcceptanceTrace:
        """Return one trace."""
        ...

    def add_pairwise(self, pairwise: PairwiseAcceptance) -> None:
        """Keep how often the models of one group agree."""
        ...

    def pairwise(
        self,
        models: Iterable[str],
        *,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
    ) -> PairwiseAcceptance | None:
        """Return the newest agreement of exactly these models, in its own order; None where there is none."""
        ...

    def missing(self, records: Records) -> Records:
        """Return the records that the store does not hold yet."""
        ...

    def add_records(self, records: Records) -> Records:
        """Keep the records that the store does not hold yet and return them: all of them or, after an error, none."""
        ...

    def open_profile(self, key: str, fresh: bool = False) -> OpenProfile:
        """Return the newest unfinished profile of a key, or a new one where there is none."""
        ...
