"""What a store promises, each method once: `Endpoint` says how it travels, the database's classes what it does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from ..errors import NoPlanError, StoreError
from ..profiler.protocols import Journal, SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from .endpoint import Arguments, Endpoint, endpoint
from .rows import PlanEvent, PlanRow, RecordPlaces, Records, SurfaceRow, TraceRow
from .sources import PlanSource
from .wire import Decision, Document, NewMeasurements, NewPlan, Resolved, Rollback

KEPT = "Kept, all of it."
adds = partial(endpoint, "POST", status=201, said=KEPT, scope="write", may_be_large=True)
puts = partial(endpoint, "PUT", status=204, said="Kept.", scope="write", is_news=True)
reads = partial(endpoint, "GET")
decides = partial(endpoint, "POST", sends=Decision, gives=PlanRow, scope="admin", is_news=True)


class OpenProfile(Journal, Protocol):
    """What one open profile has done so far; written down as it goes, finished once."""

    profile_id: int  # its number in the store
    is_resumed: bool  # whether an earlier run began it

    def finish(
        self,
        *,
        overhead: RoundOverhead | None = None,
        traces: Sequence[AcceptanceTrace] = (),
        pairwise: Sequence[PairwiseAcceptance] = (),
    ) -> None:
        """Store all but surfaces, mark the profile finished, drop its parts: all or nothing. StoreError if not open."""
        ...


class Store:
    """Everything spectune remembers: in a database (`SqlStore`) or at a planner service (`RemoteStore`).

    What is not there, or does not fit to what is there, is a StoreError, but None where a method may return that.
    Temperatures within 1e-9 are the same; lists begin with the oldest, behind an id `after` and of at most `limit`.
    """

    @property
    def url(self) -> str:
        """Where the store lies, for people: without secrets."""
        raise NotImplementedError

    @property
    def note(self) -> str:
        """What a reader should know about what was read, e.g. that a service did not answer; "" where nothing."""
        return ""

    def close(self) -> None:
        """Give up every connection; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _call(self, endpoint: Endpoint, arguments: Arguments) -> Any:
        """Answer a method that this store does not override."""
        raise NotImplementedError(f"{type(self).__name__} has no {endpoint.declared.__name__}")

    @puts("/v1/devices/{fingerprint}", "put_device")
    def add_device(self, device: Device) -> None:
        """Keep a device; what its fingerprint leaves out is updated."""

    @reads("/v1/devices", "get_devices", is_paged=True)
    def devices(self) -> list[Device]:
        """List devices, in the order they were first added."""

    @puts("/v1/models/{key}", "put_model")
    def add_model(self, model: ModelIdentity) -> None:
        """Keep a model; its name and location are updated."""

    @reads("/v1/models", "get_models", is_paged=True)
    def models(self) -> list[ModelIdentity]:
        """List models, in the order they were first added."""

    @reads("/v1/models/{key}", "get_model", absent="there is no model {key!r}; list them with GET /v1/models")
    def find_model(self, key: str) -> ModelIdentity | None:
        """Return the model with these weights."""

    @adds("/v1/measurements", "post_measurements", sends=NewMeasurements)
    def add_measurements(self, surface: SurfaceKey, measurements: Sequence[Measurement]) -> None:
        """Add cells of one surface; all of them are stored, or none."""

    @reads("/v1/surfaces/rows", "get_surface_rows")
    def surface_rows(
        self, limit: int | None = None, after: int | None = None, *, device: str | None = None
    ) -> list[SurfaceRow]:
        """List surfaces without their timings, in the order they were first measured, and how many each has."""

    @reads("/v1/surfaces", "get_surfaces")
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
        """Return surfaces with the cells that count; all at once, so name what is wanted: 422 where it is too much.

        One per key, of each batch the cells that the newest profile timed. Two profiles may have met the device at
        different speeds, so their cells never mix. Cells added without a profile count one by one: the newest of equal
        (batch, context, tokens), failures too, unless a profile of their batch is newer. Cells are sorted by (batch,
        context, tokens). The attention "" is a kernel that is not known.
        """

    @adds("/v1/overheads", "post_overhead")
    def add_overhead(self, overhead: RoundOverhead) -> None:
        """Add host times of one target on one device."""

    @reads(
        "/v1/overheads",
        "get_overhead",
        absent="the host time of {target} on {device} in {dtype} was never measured; run: spectune profile",
    )
    def overhead(self, device: str, target: str, dtype: str, regime: str | None = None) -> RoundOverhead | None:
        """Return the newest host times of a target on a device, of rounds that run as in a regime where one is named.

        None where they were never measured. A batch or kind missing in the last profile comes from the one before. The
        time of storing decides, since a merge may bring older ones.
        """

    @reads("/v1/overheads/records", "get_overhead_records")
    def host_times(self, device: str, target: str, dtype: str, regime: str | None = None) -> list[RoundOverhead]:
        """Return the records that the newest host times are joined from, newest first; none where nothing was measured.

        They are those that add something to the newer ones.
        """

    @adds("/v1/traces", "post_trace")
    def add_trace(self, trace: AcceptanceTrace) -> None:
        """Add one drafter's recording."""

    @reads("/v1/traces", "get_traces")
    def traces(self, target: str, workload: str, temperature: float) -> list[AcceptanceTrace]:
        """Return the newest trace of every drafter of a setup."""

    @reads("/v1/traces/rows", "get_trace_rows")
    def trace_rows(self, limit: int | None = None, after: int | None = None) -> list[TraceRow]:
        """List traces without their recordings, oldest first."""

    @reads("/v1/traces/{trace_id}", "get_trace")
    def trace(self, trace_id: int) -> AcceptanceTrace:
        """Return one trace."""

    @adds("/v1/pairwise", "post_pairwise")
    def add_pairwise(self, pairwise: PairwiseAcceptance) -> None:
        """Add how often the models of one group agree."""

    @reads("/v1/pairwise", "get_pairwise", absent="how these models agree is not known; run: spectune profile")
    def pairwise(
        self,
        models: Iterable[str],
        *,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
    ) -> PairwiseAcceptance | None:
        """Return the newest agreement of exactly these models, each named by `model=`; along the texts that are named.

        In its own order.
        """

    @endpoint("POST", "/v1/records/missing", "post_missing", scope="write", is_news=True, may_be_large=True)
    def missing_places(self, records: Records) -> RecordPlaces:
        """Return the places of those of these records that the store does not hold; nothing is stored."""

    @adds("/v1/records", "post_records", said="Where what was new is; it is kept now.", is_news=True)
    def keep_records(self, records: Records) -> RecordPlaces:
        """Keep what the store does not hold yet of these records, and return the places of it among them.

        All of it is kept or, after an error, nothing. Unreadable rows equal no record, and stop none.
        """

    def missing(self, records: Records) -> Records:
        """Return the records that the store does not hold yet."""
        return self._at(records, self.missing_places(records))

    def add_records(self, records: Records) -> Records:
        """Keep the records that the store does not hold yet and return them: all of them or, after an error, none."""
        return self._at(records, self.keep_records(records))

    def _at(self, records: Records, places: RecordPlaces) -> Records:
        try:
            return records.at(places)
        except IndexError as error:
            told = f"{self.url} answered with places of records that were not sent; see the log of its service"
            raise StoreError(told) from error

    def open_profile(self, key: str, fresh: bool = False) -> OpenProfile:
        """Return the newest unfinished profile of a key (64 characters), or a new one; `fresh` abandons those first."""
        raise NotImplementedError

    @adds("/v1/plans", "post_plan", sends=NewPlan, gives=PlanRow, said="Kept.", is_news=True)
    def add_plan(
        self,
        document: str,
        *,
        device: str,
        device_kind: str,
        target: str,
        workload: str,
        temperature: float,
        sources: Sequence[PlanSource] = (),
    ) -> int:
        """Keep a plan, byte for byte, and what it was computed from.

        `device` is a Device.fingerprint, `device_kind` a Device.kind_key, `target` a ModelIdentity.key. Returns its id.
        """

    @reads("/v1/plans", "get_plans", is_cached=True)
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
        """List plans, oldest first.

        With an id above `after`; a state is "kept", "promoted", "retired" or "restored".
        """

    @reads("/v1/plans/find", "find_plan", is_cached=True)
    def find_plan(
        self,
        *,
        target: str,
        workload: str,
        temperature: float,
        device: str | None = None,
        device_kind: str | None = None,
    ) -> PlanRow:
        """Return the plan of a setup that counts, made on exactly this device or on any of this kind.

        It is the one promoted last and not retired since, else the newest that is not retired; NoPlanError without one.
        """

    @endpoint("POST", "/v1/plans/rollback", "post_rollback", sends=Rollback, scope="admin", is_news=True)
    def roll_back_plan(
        self, *, device: str, target: str, workload: str, temperature: float, by: str, reason: str
    ) -> PlanRow:
        """Retire the plan of a setup that counts, and return the one before it, which counts again.

        Without one before, nothing is changed.
        """

    @reads("/v1/plans/{plan_id}", "get_plan")
    def plan(self, plan_id: int) -> str:
        """Return a plan byte for byte; its ETag is its content hash.

        StoreError, too, where it no longer has its hash.
        """

    @reads("/v1/plans/{plan_id}/row", "get_plan_row", is_cached=True)
    def plan_row(self, plan_id: int) -> PlanRow:
        """Return what the store says about a plan."""

    @reads("/v1/plans/{plan_id}/sources", "get_plan_sources")
    def plan_sources(self, plan_id: int) -> list[PlanSource]:
        """Return what a plan was computed from."""

    @reads("/v1/plans/{plan_id}/events", "get_plan_events")
    def plan_events(self, plan_id: int) -> list[PlanEvent]:
        """Return what happened to a plan's state, oldest first."""

    @decides("/v1/plans/{plan_id}/promote", "post_promote")
    def promote_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count for its setup from now on."""

    @decides("/v1/plans/{plan_id}/retire", "post_retire")
    def retire_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a plan count no more."""

    @decides("/v1/plans/{plan_id}/restore", "post_restore")
    def restore_plan(self, plan_id: int, by: str, reason: str) -> None:
        """Let a retired plan be one of its setup's again.

        It counts where it is the newest or was promoted.
        """

    def resolve(
        self, device: Device, target: str, workload: str | None, temperature: float, dtype: str | None = None
    ) -> Resolved | None:
        """Return the plan that the store itself finds best for a device, None where it leaves that to its reader.

        `workload` None means any. On each rung plans for the number format `dtype` come first; None takes any.
        NoPlanError: the store holds none. PlanError: it holds some, and none can be used.
        """

    @adds("/v1/plans/{plan_id}/observations", "post_observation", sends=Document)
    def add_observation(self, plan_id: int, document: str) -> None:
        """Keep what a decoder saw while it ran a plan."""

    @reads("/v1/plans/{plan_id}/observations", "get_observations", gives=Document)
    def observations(self, plan_id: int) -> list[str]:
        """List observations of a plan, oldest first.

        Those that wait here for a service are not among them.
        """

    def newest_observations(self, plan_id: int, limit: int) -> list[str]:
        """Return the newest observations of a plan, at most so many, oldest first."""
        raise NotImplementedError

    @adds("/v1/plans/{plan_id}/validations", "post_validation", sends=Document)
    def add_validation(self, plan_id: int, document: str) -> None:
        """Keep what a plan delivered when it was measured."""

    @reads("/v1/plans/{plan_id}/validations", "get_validations", gives=Document)
    def validations(self, plan_id: int) -> list[str]:
        """List validations of a plan, oldest first."""


def no_plan(
    url: str, target: str, workload: str, temperature: float, device: str | None = None, device_kind: str | None = None
) -> NoPlanError:
    """Return the error of a store without a plan for a setup; StoreError unless it is of a device, or of a kind."""
    if (device is None) == (device_kind is None):
        raise StoreError(f"give device or device_kind, one of them, got {device!r} and {device_kind!r}")
    where = f"device {device}" if device_kind is None else f"device kind {device_kind}"
    return NoPlanError(f"target {target} on {where}, workload {workload!r}, temperature {temperature:g}", url)
