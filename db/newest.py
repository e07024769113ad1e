"""Records of which the newest of a setup counts, whatever clocks said: written as the newest, and found alike."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from .columns import moment_after, utc_now
from .tables import OverheadTable, PairwiseTable, TraceTable

RecordTable = OverheadTable | TraceTable | PairwiseTable

SETUPS: dict[type[RecordTable], tuple[str, ...]] = {  # the columns that a record shares with those it may supersede
    OverheadTable: ("device", "target", "dtype"),
    TraceTable: ("target", "drafter", "workload"),
    PairwiseTable: ("names_hash",),
}


def setup_columns(row: RecordTable) -> dict[str, str]:
    """Return what a row shares with those that it may supersede."""
    return {name: getattr(row, name) for name in SETUPS[type(row)]}


def keep_newest(session: Session, row: RecordTable) -> None:
    """Write a row as the newest of its setup, as part of a transaction, though a clock was ahead before."""
    last = session.scalar(select(func.max(type(row).created)).filter_by(**setup_columns(row)))
    row.created = utc_now() if last is None else max(utc_now(), moment_after(last))
    session.add(row)
