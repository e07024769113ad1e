"""One store into another, without duplicates and without hiding anything newer than what comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from ..profiler.records.measurement import Measurement
from .database import Database
from .identities import device_row, model_row
from .locks import wait_for_turn
from .measurements import measurement_row, overhead_row, surface_id_of
from .outcomes import OutcomeTable
from .provenance import hash_now, keep_sources
from .shared import (
    Shared,
    SharedDevice,
    SharedEvent,
    SharedModel,
    SharedOutcome,
    SharedOverhead,
    SharedPairwise,
    SharedPlan,
    SharedSurface,
    SharedTrace,
)
from .shelf import setup_of
from .sources import record_hash
from .tables import (
    Base,
    DeviceTable,
    MeasurementTable,
    ModelTable,
    ObservationTable,
    OverheadTable,
    PairwiseTable,
    PlanEventTable,
    PlanTable,
    ProfileTable,
    TraceTable,
    ValidationTable,
    is_temperature,
)
from .traces import pairwise_row, trace_row

IMPORTED = "imported"  # the key of profiles that were finished in another store


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What became of what came in: counts by kind, and by "measurement", "observation" and "validation"."""

    added: dict[str, int]
    known: dict[str, int]  # was there already
    left_out: tuple[str, ...]  # why something was not taken, or not taken to count


def merge(database: Database, items: Callable[[], Iterable[Shared]]) -> Merged:
    """Take from another store what this one lacks, all of it or nothing, and return what became of it.

    In a store the newest row of a setup counts. So what is older than what is here of the same setup is left out, and
    a plan that is older than the setup's newest comes in retired. Which plan counts is decided here, not elsewhere:
    promotions are taken over for setups that are new here, and nowhere else.

    Args:
        database: takes the records.
        items: yields them, a plan after its sources; called again where the server has to be waited for.

    Raises:
        StoreError: the records or the database are damaged; nothing was changed.
    """

    def work(session: Session) -> Merged:
        wait_for_turn(session, "records")
        merging = _Merging(session)
        for item in items():
            merging.take(item)
        return merging.result

    return database._write(work)


class _Merging:
    """One merge under way, inside its transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._added: Counter[str] = Counter()
        self._known: Counter[str] = Counter()
        self._left_out: list[str] = []
        self._profiles: dict[int, int] = {}  # number there -> number here
        self._new_setups: set[tuple[object, ...]] = set()

    @property
    def result(self) -> Merged:
        """What became of what came in so far."""
        return Merged(added=dict(self._added), known=dict(self._known), left_out=tuple(self._left_out))

    def take(self, item: Shared) -> None:
        """Take one record."""
        match item:
            case SharedDevice():
                found = select(DeviceTable.id).filter_by(fingerprint=item.device.fingerprint)
                self._take_identity(item, device_row(item.device), found)
            case SharedModel():
                self._take_identity(item, model_row(item.model), select(ModelTable.id).filter_by(key=item.model.key))
            case SharedSurface():
                self._take_cells(item)
            case SharedOverhead():
                self._take_record(item, item.overhead, overhead_row(item.overhead), ("device", "target", "dtype"))
            case SharedTrace():
                self._take_record(item, item.trace, trace_row(item.trace), ("target", "drafter", "workload"))
            case SharedPairwise():
                self._take_record(item, item.pairwise, pairwise_row(item.pairwise), ("names_hash",))
            case SharedPlan():
                self._take_plan(item)
        self._session.flush()

    def _take_identity(
        self, item: SharedDevice | SharedModel, row: DeviceTable | ModelTable, found: Select[int]
    ) -> None:
        if self._session.scalar(found) is not None:
            self._known[item.kind] += 1
            return
        self._add(item.kind, row, item.created)

    def _take_record(
        self,
        item: SharedOverhead | SharedTrace | SharedPairwise,
        record: object,
        row: OverheadTable | TraceTable | PairwiseTable,
        setup: tuple[str, ...],
    ) -> None:
        """Take a record unless it, or a newer one of its setup, is here."""
        table, names = type(row), {name: getattr(row, name) for name in setup}
        alike = select(table.document, table.created).filter_by(**names)
        if isinstance(row, TraceTable):
            alike = alike.where(is_temperature(TraceTable.temperature, row.temperature))
        newest = ""
        for document, created in self._session.execute(alike):
            if hash_now(type(record), document) == record_hash(record):
                self._known[item.kind] += 1
                return
            newest = max(newest, created)
        if item.created < newest:
            self._leave_out(f"{item.kind} of {_listed(names)}, kept on {item.created}: one of {newest} is here")
            return
        self._add(item.kind, row, item.created)

    def _take_cells(self, item: SharedSurface) -> None:
        """Take the cells of a surface that are not here; of a batch of which newer cells are here, none."""
        surface_id = surface_id_of(self._session, item.surface)
        rows = select(MeasurementTable.batch, MeasurementTable.created, MeasurementTable.document)
        known, newest = set(), dict[int, str]()
        for batch, created, document in self._session.execute(rows.filter_by(surface_id=surface_id)):
            known.add(hash_now(Measurement, document))
            newest[batch] = max(newest.get(batch, ""), created)
        late: Counter[int] = Counter()
        for cell in item.cells:
            batch = cell.measurement.batch
            if record_hash(cell.measurement) in known:
                self._known["measurement"] += 1
            elif cell.created < newest.get(batch, ""):
                late[batch] += 1
            else:
                row = measurement_row(surface_id, self._profile(cell.profile), cell.measurement)
                self._add("measurement", row, cell.created)
        for batch, count in late.items():
            where = _listed(asdict(item.surface))
            self._leave_out(f"{count} cells at batch {batch} of {where}: cells of {newest[batch]} are here")

    def _profile(self, number: int | None) -> int | None:
        """Return the profile of this store that stands for one of the other's."""
        if number is None:
            return None
        if number not in self._profiles:
            row = ProfileTable(key=IMPORTED, state="finished")
            self._session.add(row)
            self._session.flush()
            self._profiles[number] = row.id
        return self._profiles[number]

    def _take_plan(self, item: SharedPlan) -> None:
        setup = setup_of(PlanTable.device == item.device, item.target, item.workload, item.temperature)
        wait_for_turn(self._session, "plans", item.device, item.target, item.workload)
        same = select(PlanTable.id).where(*setup, PlanTable.content_hash == item.content_hash)
        if known := self._session.scalar(same.order_by(PlanTable.id).limit(1)):
            self._known["plan"] += 1
            self._take_outcomes(item, known)
            return
        newest, version = self._session.execute(
            select(func.max(PlanTable.created), func.max(PlanTable.version)).where(*setup)
        ).one()
        names = {name: getattr(item, name) for name in ("device", "device_kind", "target", "workload", "temperature")}
        row = PlanTable(**names, document=item.document, version=1 + (version or 0))
        self._add("plan", row, item.created)
        self._session.flush()
        keep_sources(self._session, row, item.sources)
        self._take_outcomes(item, row.id)
        self._take_events(item, row.id, newest)

    def _take_outcomes(self, item: SharedPlan, plan_id: int) -> None:
        """Take what became of a plan as far as it is not here; of equal texts as many as there are there."""
        tables: tuple[tuple[str, OutcomeTable, Sequence[SharedOutcome]], ...] = (
            ("observation", ObservationTable, item.observations),
            ("validation", ValidationTable, item.validations),
        )
        for kind, table, outcomes in tables:
            here = Counter(self._session.scalars(select(table.document).filter_by(plan_id=plan_id)))
            for outcome in outcomes:
                if here[outcome.document]:
                    here[outcome.document] -= 1
                    self._known[kind] += 1
                else:
                    self._add(kind, table(plan_id=plan_id, document=outcome.document), outcome.created)

    def _take_events(self, item: SharedPlan, plan_id: int, newest: str | None) -> None:
        """Take over what happened to a plan, as far as it may decide here which plan counts."""
        setup = (item.device, item.target, item.workload, round(item.temperature, 9))
        if newest is None:
            self._new_setups.add(setup)
        if setup in self._new_setups:
            for event in item.events:
                self._session.add(_event_row(plan_id, event))
            return
        is_retired = bool(item.events) and item.events[-1].action == "retired"
        if is_retired:
            self._session.add(_event_row(plan_id, item.events[-1]))
        elif newest is not None and item.created < newest:
            reason = f"kept on {item.created}, and a plan of {newest} was here"
            self._session.add(PlanEventTable(plan_id=plan_id, action="retired", by=IMPORTED, reason=reason))
            self._leave_out(f"plan {plan_id} is in, but retired: {reason}")

    def _add(self, kind: str, row: Base, created: str) -> None:
        row.created = created
        self._session.add(row)
        self._added[kind] += 1

    def _leave_out(self, why: str) -> None:
        self._left_out.append(why)


def _event_row(plan_id: int, event: SharedEvent) -> PlanEventTable:
    return PlanEventTable(plan_id=plan_id, **asdict(event))


def _listed(names: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in names.items() if value)
