"""Where plans come from: their sources as rows, each tied to the rows of the store that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from ...errors import SpectuneError
from ...profiler.records.measurement import Measurement
from ...profiler.records.wire import from_json, to_json
from ..rows import key_of
from ..sources import PlanSource, SourceKind, SurfaceManifest, content_hash, record_hash
from .database import insert_once
from .documents import SUPERSEDED
from .engines import wait_for_turn
from .tables import ManifestTable, MeasurementTable, PlanSourceTable, PlanTable, SurfaceTable

PRUNING = "prune"  # what a plan that names rows and a prune that deletes them wait for


def keep_sources(session: Session, plan: PlanTable, sources: Sequence[PlanSource]) -> None:
    """Write a plan's sources in the plan's transaction; an older version's record has another hash, that of its row."""
    if sources:
        wait_for_turn(session, PRUNING, is_shared=True)
    for source in sources:
        kept = _of_surface(session, source) if source.manifest is not None else _of_row(session, source, plan)
        found = select(ManifestTable.id).filter_by(content_hash=kept.content_hash)
        if kept.manifest is not None and session.scalar(found) is None:
            insert_once(session, ManifestTable(document=kept.manifest))
        names = {"kind": kept.kind, "content_hash": kept.content_hash, "name": kept.name}
        session.add(PlanSourceTable(plan_id=plan.id, is_held=kept.is_held, **names))


def sources_of(session: Session, plan_id: int) -> list[PlanSource]:
    """Return what a plan was computed from, in the order it was given."""
    found = (
        select(PlanSourceTable, ManifestTable.document)
        .join(ManifestTable, ManifestTable.content_hash == PlanSourceTable.content_hash, isouter=True)
        .where(PlanSourceTable.plan_id == plan_id)
        .order_by(PlanSourceTable.id)
    )
    return [_source(row, manifest) for row, manifest in session.execute(found)]


def _source(row: PlanSourceTable, manifest: str | None) -> PlanSource:
    return PlanSource(
        kind=cast(SourceKind, row.kind),  # checked by the record
        content_hash=row.content_hash,
        name=row.name,
        manifest=manifest if row.kind == "surface" else None,
        is_held=row.is_held,
    )


def _of_surface(session: Session, source: PlanSource) -> PlanSource:
    assert source.manifest is not None
    manifest = from_json(SurfaceManifest, source.manifest)
    held = _held_of(session, manifest)
    lacking = set(manifest.measurements) - held
    if not lacking:
        return replace(source, is_held=True)
    renamed = _renamed_cells(session, key_of(manifest), held - set(manifest.measurements), lacking)
    if lacking - set(renamed):
        return replace(source, is_held=False)
    hashes = tuple(sorted(renamed.get(each, each) for each in manifest.measurements))
    document = to_json(replace(manifest, measurements=hashes))
    return replace(source, manifest=document, content_hash=content_hash(document), is_held=True)


def is_whole(session: Session, document: str) -> bool:
    """Say whether every cell that a manifest names is there."""
    manifest = from_json(SurfaceManifest, document)
    return set(manifest.measurements) <= _held_of(session, manifest)


def _held_of(session: Session, manifest: SurfaceManifest) -> set[str]:
    cells = select(MeasurementTable.content_hash).join(SurfaceTable).filter_by(**key_of(manifest))
    return set(session.scalars(cells))


def _renamed_cells(session: Session, key: dict[str, str], among: set[str], wanted: set[str]) -> dict[str, str]:
    """Return, for the hash that a cell has now, the hash of the row that an older version wrote of it."""
    rows = select(MeasurementTable).join(SurfaceTable).filter_by(**key).order_by(MeasurementTable.id)
    renamed = {}
    for row in session.scalars(rows):
        if row.content_hash in among and (now := hash_now(Measurement, row.document)) in wanted:
            renamed[now] = row.content_hash
    return renamed


def _of_row(session: Session, source: PlanSource, plan: PlanTable) -> PlanSource:
    kind, table, names = SUPERSEDED[source.kind]
    if session.scalar(select(table.id).filter_by(content_hash=source.content_hash).limit(1)) is not None:
        return replace(source, is_held=True)
    setup = {name: getattr(plan, name) for name in names if name in ("target", "workload")}
    alike_rows = select(table.document, table.content_hash).filter_by(**setup)
    for document, kept_hash in session.execute(alike_rows):
        if hash_now(kind, document) == source.content_hash:
            return replace(source, content_hash=kept_hash, is_held=True)
    return replace(source, is_held=False)


def hash_now(kind: type[object], document: str) -> str:
    """Return the hash of a row's record as this version writes it; "" where it is no such record."""
    try:
        return record_hash(from_json(kind, document))
    except SpectuneError:
        return ""
