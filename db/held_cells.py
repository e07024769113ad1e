"""The cells of one surface that a store holds, as a merge compares others with them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from ..profiler.records.measurement import Measurement
from .provenance import hash_now
from .shared import SharedCell
from .sources import record_hash
from .tables import MeasurementTable

Mark = tuple[str, str]  # of a cell: its hash and its moment, since a shape that fails twice has the same text twice


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCells:
    """Which cells are here, and when the newest of each batch was stored; profiles by their numbers here."""

    profiles: dict[Mark, int | None]  # of each cell the profile that timed it
    newest: dict[int, dict[int | None, str]]  # batch -> profile -> created

    def profiles_of(self, cells: Sequence[SharedCell], marks: Sequence[Mark]) -> dict[int | None, int]:
        """Return the profiles here that some cells of another store's belong to, by their numbers there."""
        found = ((cell.profile, self.profiles.get(mark)) for cell, mark in zip(cells, marks, strict=True))
        return {there: here for there, here in found if there is not None and here is not None}

    def newest_beside(self, profile: int | None, batch: int) -> str:
        """Return when the newest cell of a batch was stored that this profile did not time; "" where there is none."""
        of_batch = self.newest.get(batch, {}).items()
        return max((created for each, created in of_batch if each is None or each != profile), default="")


def held_cells(session: Session, surface_id: int) -> HeldCells:
    """Return the cells of a surface."""
    columns = (MeasurementTable.batch, MeasurementTable.profile_id, MeasurementTable.created, MeasurementTable.document)
    profiles: dict[Mark, int | None] = {}
    newest: dict[int, dict[int | None, str]] = defaultdict(dict)
    for batch, profile, created, document in session.execute(select(*columns).filter_by(surface_id=surface_id)):
        profiles[hash_now(Measurement, document), created] = profile
        newest[batch][profile] = max(newest[batch].get(profile, ""), created)
    return HeldCells(profiles=profiles, newest=newest)


def mark_of(cell: SharedCell) -> Mark:
    """Return what tells whether a cell is here."""
    return record_hash(cell.measurement), cell.created
