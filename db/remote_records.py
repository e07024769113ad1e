"""What a service knows of devices and models, and what was measured on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from ..errors import StoreError
from ..profiler.protocols import SurfaceKey
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.device import Device
from ..profiler.records.measurement import Measurement
from ..profiler.records.model import ModelIdentity
from ..profiler.records.overhead import RoundOverhead
from ..profiler.records.surface import LatencySurface
from .imports import RecordPlaces, Records
from .remote_client import RemoteClient
from .remote_http import RefusedError
from .remote_service import ABSENT, Params
from .surface_rows import SurfaceRow
from .traces import TraceRow, is_along
from .wire import TOO_MANY_TIMINGS, NewMeasurements


class RemoteRecords(RemoteClient):
    """Devices, models, timings and recordings at a service; each method is that of a store in a database."""

    def add_device(self, device: Device) -> None:
        """Keep a device; what its fingerprint leaves out (its index, say) is updated."""
        self._service.write("PUT", f"/v1/devices/{quote(device.fingerprint, safe='')}", device)

    def devices(self) -> list[Device]:
        """Return every device that can be read, in the order they were first added."""
        return self._service.all(Device, "/v1/devices")

    def add_model(self, model: ModelIdentity) -> None:
        """Keep a model; what its key leaves out (its name and location, say) is updated."""
        self._service.write("PUT", f"/v1/models/{quote(model.key, safe='')}", model)

    def models(self) -> list[ModelIdentity]:
        """Return every model that can be read, in the order they were first added."""
        return self._service.all(ModelIdentity, "/v1/models")

    def find_model(self, key: str) -> ModelIdentity | None:
        """Return the model with these weights, None where the store does not know it."""
        return self._service.find(ModelIdentity, f"/v1/models/{quote(key, safe='')}") if key else None

    def add_measurements(self, surface: SurfaceKey, measurements: Sequence[Measurement]) -> None:
        """Keep cells of one surface, raw repeats and failures included; all of them or, after an error, none."""
        new = NewMeasurements(surface=surface, measurements=tuple(measurements))
        self._service.write("POST", "/v1/measurements", new)

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
        """Return one surface per key, of each batch the newest profile's cells; see `Measurements.surfaces`."""
        wanted = {"device": device, "model": model, "dtype": dtype}
        further = {"role": role, "regime": regime, "attention": attention}
        return self._surfaces({**wanted, **further})

    def _surfaces(self, wanted: Mapping[str, str | None]) -> list[LatencySurface]:
        """Return surfaces together, or one by one where they are too much for one answer."""
        try:
            return self._service.all(LatencySurface, "/v1/surfaces", wanted)
        except RefusedError as error:
            if not error.kind.endswith(TOO_MANY_TIMINGS):
                raise
        rows = self.surface_rows(device=wanted["device"])
        keys = [{name: getattr(row, name) for name in wanted} for row in rows]
        meant = [key for key in keys if all(value in (None, key[name]) for name, value in wanted.items())]
        return [one for key in meant for one in self._service.all(LatencySurface, "/v1/surfaces", key)]

    def surface_rows(
        self, limit: int | None = None, after: int | None = None, *, device: str | None = None
    ) -> list[SurfaceRow]:
        """Return rows of timed surfaces in the order first measured: of a Device.fingerprint, an id above `after`."""
        return self._service.all(SurfaceRow, "/v1/surfaces/rows", {"device": device}, limit, after)

    def add_overhead(self, overhead: RoundOverhead) -> None:
        """Keep the host time per round of one target on one device."""
        self._service.write("POST", "/v1/overheads", overhead)

    def overhead(self, device: str, target: str, dtype: str, regime: str | None = None) -> RoundOverhead | None:
        """Return a target's newest host times on a device, of rounds that run alike; None where never measured."""
        setup = {"device": device, "target": target, "dtype": dtype, "regime": regime}
        return self._service.find(RoundOverhead, "/v1/overheads", setup)

    def host_times(self, device: str, target: str, dtype: str, regime: str | None = None) -> list[RoundOverhead]:
        """Return the records that `overhead` joins, newest first; of an older service what it joins, as one."""
        setup = {"device": device, "target": target, "dtype": dtype, "regime": regime}
        try:
            return self._service.all(RoundOverhead, "/v1/overheads/records", setup)
        except RefusedError as error:
            if error.status != ABSENT:
                raise
        joined = self.overhead(device, target, dtype, regime)
        return [] if joined is None else [joined]

    def add_trace(self, trace: AcceptanceTrace) -> None:
        """Keep one drafter's recording."""
        self._service.write("POST", "/v1/traces", trace)

    def traces(self, target: str, workload: str, temperature: float) -> list[AcceptanceTrace]:
        """Return every drafter's newest trace of a setup, the oldest first; temperatures within 1e-9 are the same."""
        setup: Params = {"target": target, "workload": workload, "temperature": float(temperature)}
        return self._service.all(AcceptanceTrace, "/v1/traces", setup)

    def trace_rows(self, limit: int | None = None, after: int | None = None) -> list[TraceRow]:
        """Return the rows of traces, oldest first, with an id above `after`; the recordings themselves are not read."""
        return self._service.all(TraceRow, "/v1/traces/rows", None, limit, after)

    def trace(self, trace_id: int) -> AcceptanceTrace:
        """Return one trace; raise StoreError where it is missing or damaged."""
        return self._service.get(AcceptanceTrace, f"/v1/traces/{trace_id:d}")

    def add_pairwise(self, pairwise: PairwiseAcceptance) -> None:
        """Keep how often the models of one group agree."""
        self._service.write("POST", "/v1/pairwise", pairwise)

    def pairwise(
        self,
        models: Iterable[str],
        *,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
    ) -> PairwiseAcceptance | None:
        """Return the newest agreement of exactly these models along such texts, in its own order, or None."""
        asked: Params = {
            "model": tuple(models),
            "target": target,
            "workload": workload,
            "temperature": None if temperature is None else float(temperature),
        }
        found = self._service.find(PairwiseAcceptance, "/v1/pairwise", asked)
        is_meant = found is not None and is_along(found, target, workload, temperature)  # older services go by names
        return found if is_meant else None

    def missing(self, records: Records) -> Records:
        """Return the part of some records that the store does not hold."""
        return self._at(records, self._service.ask(RecordPlaces, "/v1/records/missing", records))

    def add_records(self, records: Records) -> Records:
        """Keep what the store does not hold yet, in one transaction, and return it."""
        return self._at(records, self._service.ask(RecordPlaces, "/v1/records", records))

    def _at(self, records: Records, places: RecordPlaces) -> Records:
        try:
            return records.at(places)
        except IndexError as error:
            raise StoreError(f"{self.url} answered with places of records that were not sent; see its log") from error
