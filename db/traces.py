"""What drafters are worth: recorded traces, and how often models agree with each other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, fields

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..errors import StoreError
from ..profiler.records.acceptance import AcceptanceTrace, PairwiseAcceptance
from ..profiler.records.wire import to_json
from .database import Database
from .documents import record_of
from .newest import keep_newest
from .tables import PairwiseTable, TraceTable, is_temperature

Texts = tuple[str, str, float | None]  # those models were compared along: their target, workload and temperature


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """What a store says about one trace."""

    id: int
    target: str  # ModelIdentity.key
    drafter: str  # ModelIdentity.key
    workload: str
    temperature: float
    created: str  # UTC, ISO 8601
    content_hash: str  # sha256 of the text, 64 hex digits


class Traces(Database):
    """Recordings, only ever added; the newest of each kind is the one returned."""

    def add_trace(self, trace: AcceptanceTrace) -> None:
        """Keep one drafter's recording."""
        self._write(lambda session: keep_newest(session, trace_row(trace)))

    def traces(self, target: str, workload: str, temperature: float) -> list[AcceptanceTrace]:
        """Return the newest trace of every drafter recorded for a setup, oldest recording first.

        Args:
            target: ModelIdentity.key.
            workload: name of the prompts.
            temperature: of the target's text; within 1e-9 is the same.
        """
        newest = select(func.max(TraceTable.id)).filter_by(target=target, workload=workload)
        newest = newest.where(is_temperature(TraceTable.temperature, temperature)).group_by(TraceTable.drafter)
        found = select(TraceTable).where(TraceTable.id.in_(newest)).order_by(TraceTable.id)
        return self._read(lambda session: [record_of(AcceptanceTrace, row, self.url) for row in session.scalars(found)])

    def trace_rows(self, limit: int | None = None, after: int | None = None) -> list[TraceRow]:
        """Return what the store says about traces, oldest first; the recordings themselves are not read.

        Args:
            limit: at most so many; all where absent.
            after: only traces whose id is greater than this.
        """
        columns = [getattr(TraceTable, field.name) for field in fields(TraceRow)]
        found = select(*columns).where(*([TraceTable.id > after] if after is not None else []))
        found = found.order_by(TraceTable.id).limit(limit)
        return self._read(lambda session: [TraceRow(**row) for row in session.execute(found).mappings()])

    def trace(self, trace_id: int) -> AcceptanceTrace:
        """Return one trace.

        Raises:
            StoreError: there is no such trace, or its text is damaged.
        """

        def work(session: Session) -> AcceptanceTrace:
            row = session.get(TraceTable, trace_id)
            if row is None:
                raise StoreError(f"there is no trace {trace_id} in {self.url}; list them with: spectune list")
            return record_of(AcceptanceTrace, row, self.url)

        return self._read(work)

    def add_pairwise(self, pairwise: PairwiseAcceptance) -> None:
        """Keep how often the models of one group agree."""
        self._write(lambda session: keep_newest(session, pairwise_row(pairwise)))

    def pairwise(
        self,
        models: Iterable[str],
        *,
        target: str | None = None,
        workload: str | None = None,
        temperature: float | None = None,
    ) -> PairwiseAcceptance | None:
        """Return the newest agreement of exactly these models, in its own order; None where there is none.

        Args:
            models: the names, in any order.
            target: only along texts of this ModelIdentity.key.
            workload: only along texts that continue these prompts.
            temperature: only along texts of exactly this one, as the plan's traces have it.
        """
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
    """Say whether models were compared along the texts that are asked for; None asks for any."""
    asked = (target, workload, temperature)
    return all(wanted in (None, seen) for wanted, seen in zip(asked, texts_along(pairwise), strict=True))


def _names_hash(models: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(sorted(models)).encode()).hexdigest()
