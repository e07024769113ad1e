"""What drafters are worth: recorded traces, and how often models agree with each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..errors import StoreError
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.wire import to_json
from .database import Database
from .documents import columns_of, record_of
from .newest import keep_newest
from .rows import TraceRow
from .tables import PairwiseTable, TraceTable, is_temperature

Texts = tuple[str, str, float | None]  # those models were compared along: their target, workload and temperature


class Traces(Database):
    """Recordings, only ever added; the newest of each kind is the one returned."""

    def add_trace(self, trace: AcceptanceTrace) -> None:
        self._write(lambda session: keep_newest(session, trace_row(trace)))

    def traces(self, target: str, workload: str, temperature: float) -> list[AcceptanceTrace]:
        newest = select(func.max(TraceTable.id)).filter_by(target=target, workload=workload)
        newest = newest.where(is_temperature(TraceTable.temperature, temperature)).group_by(TraceTable.drafter)
        found = select(TraceTable).where(TraceTable.id.in_(newest)).order_by(TraceTable.id)
        return self._read(lambda session: [record_of(AcceptanceTrace, row, self.url) for row in session.scalars(found)])

    def trace_rows(self, limit: int | None = None, after: int | None = None) -> list[TraceRow]:
        found = select(*columns_of(TraceTable, TraceRow)).where(TraceTable.id > (after or 0))
        return self._rows(TraceRow, found.order_by(TraceTable.id).limit(limit))

    def trace(self, trace_id: int) -> AcceptanceTrace:
        def work(session: Session) -> AcceptanceTrace:
            row = session.get(TraceTable, trace_id)
            if row is None:
                raise StoreError(f"there is no trace {trace_id} in {self.url}; list them with: spectune list")
            return record_of(AcceptanceTrace, row, self.url)

        return self._read(work)

    def add_pairwise(self, pairwise: PairwiseAcceptance) -> None:
        self._write(lambda session: keep_newest(session, pairwise_row(pairwise)))

    def pairwise(
        self,
        models: Iterable[str],
        *,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
    ) -> PairwiseAcceptance | None:
        found = select(PairwiseTable).filter_by(names_hash=_names_hash(models)).order_by(PairwiseTable.id.desc())

        def work(session: Session) -> PairwiseAcceptance | None:
            agreements = (record_of(PairwiseAcceptance, row, self.url) for row in session.scalars(found))
            return next((each for each in agreements if is_along(each, target, workload, temperature)), None)

        return self._read(work)


def trace_row(trace: AcceptanceTrace) -> TraceTable:
    """Return the row of a recording."""
    return TraceTable(
        target=trace.target,
        drafter=trace.drafter,
        workload=trace.workload,
        temperature=trace.temperature,
        document=to_json(trace),
    )


def pairwise_row(pairwise: PairwiseAcceptance) -> PairwiseTable:
    """Return the row of how often some models agree."""
    return PairwiseTable(names_hash=_names_hash(pairwise.models), document=to_json(pairwise))


def texts_along(pairwise: PairwiseAcceptance) -> Texts:
    """Return along which texts models were compared: models of the same names agree otherwise along others."""
    return pairwise.target, pairwise.workload, pairwise.temperature


def is_along(pairwise: PairwiseAcceptance, target: str | None, workload: str | None, temperature: float | None) -> bool:
    """Return whether models were compared along these texts; None means any."""
    asked = (target, workload, temperature)
    return all(wanted in (None, seen) for wanted, seen in zip(asked, texts_along(pairwise), strict=True))


def _names_hash(models: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(sorted(models)).encode()).hexdigest()
