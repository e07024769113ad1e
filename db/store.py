"""The store: where measurements, traces and plans are remembered, and found again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from ..profiler.protocols import Journal, SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from .remote_url import is_service

if TYPE_CHECKING:
    from .imports import Records
    from .plans import PlanRow
    from .shelf import PlanEvent
    from .sources import PlanSource
    from .surface_rows import SurfaceRow
    from .traces import TraceRow
    from .wire import Resolved


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
        """Keep what was measured besides surfaces, mark the profile finished and drop its parts: all of it or nothing.

        Raises:
            StoreError: the profile is no longer open.
        """
        ...


class Store(Protocol):
    """Everything spectune remembers: in a database (`SqlStore`) or at a planner service (`RemoteStore`); see there."""

    @property
    def url(self) -> str:
        """Where the store lies, for people: without secrets."""
        ...

    @property
    def note(self) -> str:
        """What a reader should know about what was read, e.g. that a service did not answer; "" where nothing."""
        ...

    def close(self) -> None:
        """Give up every connection; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def add_device(self, device: Device) -> None:
        """Keep a device; what its fingerprint leaves out (its index, say) is updated."""
        ...

    def devices(self) -> list[Device]:
        """Return every device, in the order they were first added."""
        ...

    def add_model(self, model: ModelIdentity) -> None:
        """Keep a model; what its key leaves out (its name and location, say) is updated."""
        ...

    def models(self) -> list[ModelIdentity]:
        """Return every model, in the order they were first added."""
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

    def add_plan(
        self,
        plan_json: str,
        *,
        device: str,
        device_kind: str,
        target: str,
        workload: str,
        temperature: float,
        sources: Sequence[PlanSource] = (),
    ) -> int:
        """Keep a plan's text with its hash and what it was computed from, and return its id."""
        ...

    def find_plan(
        self,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str,
        workload: str,
        temperature: float,
    ) -> PlanRow:
        """Return the plan of a setup that counts, made on exactly this device or on any device of this kind."""
        ...

    def newest_plan(
        self,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str,
        workload: str,
        temperature: float,
    ) -> str:
        """Return the text of a setup's plan, as find_plan chooses it."""
        ...

    def plan(self, plan_id: int) -> str:
        """Return the text of one plan, byte for byte as it was added."""
        ...

    def plan_row(self, plan_id: int) -> PlanRow:
        """Return what the store says about one plan."""
        ...

    def plan_sources(self, plan_id: int) -> list[PlanSource]:
        """Return what a plan was computed from; nothing is known of plans that an older version kept."""
        ...

    def plan_events(self, plan_id: int) -> list[PlanEvent]:
        """Return everything that happened to a plan's state, oldest first."""
        ...

    def plans(
        self,
        limit: int | None = None,
        after: int | None = None,
        *,
        device: str | None = None,
        device_kind: str | None = None,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
        state: str | None = None,
    ) -> list[PlanRow]:
        """Return what the store says about plans, oldest first."""
        ...

    def resolve(
        self, device: Device, target: str, workload: str | None, temperature: float, dtype: str | None = None
    ) -> Resolved | None:
        """Return the plan that the store itself finds best for a device, None where it leaves that to its reader."""
        ...

    def promote_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count for its setup from now on."""
        ...

    def retire_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count no more."""
        ...

    def restore_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a retired plan be one of its setup's again."""
        ...

    def roll_back_plan(
        self, *, device: str, target: str, workload: str, temperature: float, by: str, reason: str
    ) -> PlanRow:
        """Retire the plan of a setup that counts, and return the one that counts now: the one that did before."""
        ...

    def add_observation(self, plan_id: int, document: str) -> None:
        """Keep what a decoder saw while it ran a plan."""
        ...

    def observations(self, plan_id: int) -> list[str]:
        """Return every observation of a plan, oldest first."""
        ...

    def newest_observations(self, plan_id: int, limit: int) -> list[str]:
        """Return the newest observations of a plan, at most so many, oldest first."""
        ...

    def add_validation(self, plan_id: int, document: str) -> None:
        """Keep what a plan delivered when it was measured."""
        ...

    def validations(self, plan_id: int) -> list[str]:
        """Return every validation of a plan, oldest first."""
        ...


def open_store(url: str | None = None, *, upgrade: bool = True) -> Store:
    """Open a store: a database, whose schema is created or upgraded where needed, or a planner service.

    Args:
        url: the path of an SQLite file, any SQLAlchemy URL, or the https:// URL of a service (http:// on this machine);
            None means the SPECTUNE_STORE variable, else `store.db` in the user's data folder.
        upgrade: create or upgrade a database's schema; else one of this version's schema must be there.

    Raises:
        StoreError: the text is no URL, the scheme is unknown, the file is damaged or may not be written, the server
            does not answer, or the schema is newer than this spectune. Nothing was written then.
    """
    from .sql_store import SqlStore
    from .url import named_place, resolve_url

    place = named_place(url)
    if is_service(place):
        from .remote import RemoteStore
        from .remote_url import service_url

        return RemoteStore(service_url(place))
    return SqlStore(resolve_url(place), upgrade=upgrade)
