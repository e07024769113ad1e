"""What became of plans: what decoders saw while they ran them, and what they delivered when they were measured."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..errors import StoreError
from .database import Database
from .tables import ObservationTable, PlanTable, ValidationTable

OutcomeTable = type[ObservationTable] | type[ValidationTable]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """One observation or validation of a plan."""

    id: int
    document: str


class Outcomes(Database):
    """Observations and validations, only ever added; their texts are other floors' records."""

    def add_observation(self, plan_id: int, document: str) -> None:
        """Store what a decoder saw while it ran a plan; raise StoreError where there is no such plan."""
        self._append(ObservationTable, plan_id, document)

    def observations(self, plan_id: int) -> list[str]:
        """Return every observation of a plan, oldest first."""
        return self._documents(ObservationTable, plan_id)

    def observation_rows(self, plan_id: int, limit: int, after: int = 0) -> list[OutcomeRow]:
        """Return observations of a plan with a higher id, oldest first, at most so many."""
        return self._rows(ObservationTable, plan_id, limit, after)

    def newest_observations(self, plan_id: int, limit: int) -> list[str]:
        """Return the newest observations of a plan, at most so many, oldest first."""
        found = select(ObservationTable.document).filter_by(plan_id=plan_id).order_by(ObservationTable.id.desc())
        return self._read(lambda session: list(session.scalars(found.limit(limit)))[::-1])

    def add_validation(self, plan_id: int, document: str) -> None:
        """Store what a plan delivered when it was measured; raise StoreError where there is no such plan."""
        self._append(ValidationTable, plan_id, document)

    def validations(self, plan_id: int) -> list[str]:
        """Return every validation of a plan, oldest first."""
        return self._documents(ValidationTable, plan_id)

    def validation_rows(self, plan_id: int, limit: int, after: int = 0) -> list[OutcomeRow]:
        """Return validations of a plan with a higher id, oldest first, at most so many."""
        return self._rows(ValidationTable, plan_id, limit, after)

    def _append(self, table: OutcomeTable, plan_id: int, document: str) -> None:
        def work(session: Session) -> None:
            plan = self._existing(session, plan_id)
            session.add(table(plan_id=plan.id, document=document))

        self._write(work)

    def _documents(self, table: OutcomeTable, plan_id: int) -> list[str]:
        found = select(table.document).filter_by(plan_id=plan_id).order_by(table.id)
        return self._read(lambda session: list(session.scalars(found)))

    def _rows(self, table: OutcomeTable, plan_id: int, limit: int, after: int) -> list[OutcomeRow]:
        found = select(table.id, table.document).filter_by(plan_id=plan_id).where(table.id > after)
        found = found.order_by(table.id).limit(limit)
        return self._read(lambda session: [OutcomeRow(**row) for row in session.execute(found).mappings()])

    def _existing(self, session: Session, plan_id: int) -> PlanTable:
        row = session.get(PlanTable, plan_id)
        if row is None:
            raise StoreError(f"there is no plan {plan_id} in {self.url}; list them with: spectune list")
        return row
