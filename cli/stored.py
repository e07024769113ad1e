"""One record of the store in the forms a command prints it in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..db.rows import SurfaceRow
from ..db.store import Store
from ..errors import StoreError
from ..profiler.confidence import step_reliability
from ..profiler.records.calibration import Reliability
from ..profiler.records.document import SurfaceDocument, TraceDocument
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import to_json
from ..report.surface import surface_figure
from ..report.trace import trace_figure
from .report import Table, facts_of

if TYPE_CHECKING:
    from ..report.figure import Figure

Json = dict[str, Any]  # JSON values
VERIFY = "verify"  # role of a target's forwards over drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One record: as it is stored, as facts for programs, as tables and a picture for people."""

    document: str
    facts: Json
    tables: tuple[Table, ...]
    draw: Callable[[], Figure]
    verdict: tuple[str, ...] = ()  # what is said before the tables


def stored_surface(store: Store, number: int | None) -> Stored:
    """Return a surface; without a number the target's timed last, or else any model's. StoreError: there is none."""
    rows = {row.id: row for row in sorted(store.surface_rows(), key=lambda row: (row.role == VERIFY, row.newest))}
    row = rows[_chosen("surface", number, tuple(rows), store.url)]
    own = {"role": row.role, "regime": row.regime, "attention": row.attention}
    (surface,) = store.surfaces(row.device, row.model, row.dtype, **own)
    about = surface_facts(row, model_names(store)) | {"cells": len(surface.measurements)}
    devices = {device.fingerprint: device for device in store.devices()}
    is_verify = surface.role == VERIFY  # what rounds take beside their forwards goes with it
    document = SurfaceDocument(
        surface=surface,
        device=devices.get(surface.device),
        model=store.find_model(surface.model),
        overhead=store.overhead(surface.device, surface.model, surface.dtype, surface.regime) if is_verify else None,
    )
    device = surface.device if document.device is None else document.device.label
    return Stored(
        document=to_json(document),
        facts={**about, "measurements": [facts_of(cell) for cell in surface.measurements]},
        tables=(_latency_table(surface), facts_table(f"surface {row.id}", about)),
        draw=lambda: surface_figure(surface, device=device, model=about["model"]),
    )


def stored_trace(store: Store, number: int | None) -> Stored:
    """Return a trace, without its tokens; the newest where no number is given; StoreError where there is none."""
    rows = {row.id: asdict(row) for row in store.trace_rows()}
    chosen = _chosen("trace", number, tuple(rows), store.url)
    trace = store.trace(chosen)
    confidence = step_reliability(trace)
    about = {
        **named(rows[chosen], model_names(store)),
        "drafter_name": trace.drafter_name,
        "prompts": len(trace.prompts),
        "positions": trace.positions,
        "prefix_exact": trace.prefix_exact,
        "seed": trace.seed,
        "bytes_per_position": trace.bytes_per_position,
        "bytes_per_node": trace.bytes_per_node,
        "expected_calibration_error": confidence.expected_error,
    }
    ranks = trace.rank_acceptance().tolist()
    target, drafter = store.find_model(trace.target), store.find_model(trace.drafter)
    return Stored(
        document=to_json(TraceDocument(trace=trace, target=target, drafter=drafter)),
        facts={**about, "acceptance_by_rank": ranks, "reliability": facts_of(confidence)["bins"]},
        tables=(
            Table(title="the target's token is the drafter's", columns=("rank", "share"), rows=[*enumerate(ranks, 1)]),
            _reliability_table(confidence),
            facts_table(f"trace {chosen}", about),
        ),
        draw=lambda: trace_figure(trace, target=about["target"]),
    )


KINDS: Mapping[str, Callable[[Store, int | None], Stored]] = {
    "surface": stored_surface,
    "trace": stored_trace,
}


def surface_facts(row: SurfaceRow, names: Mapping[str, str]) -> Json:
    """Return what a surface is about, how many timings it ever had and when the last; JSON values."""
    return asdict(row) | {"model": names.get(row.model, row.model)}


def model_names(store: Store) -> dict[str, str]:
    """Return the names of the models a store knows, by key."""
    return {model.key: model.name for model in store.models()}


def named(row: Json, names: Mapping[str, str]) -> Json:
    """Return a row with its models' names in place of their keys."""
    keys = [column for column in ("target", "drafter") if column in row]
    return row | {column: names.get(row[column], row[column]) for column in keys}


def _chosen(kind: str, number: int | None, known: Sequence[int], url: str) -> int:
    if not known:
        raise StoreError(f"there is no {kind} in {url}; run: spectune profile")
    chosen = number or known[-1]
    if chosen not in known:
        raise StoreError(f"there is no {kind} {chosen} in {url}; list them with: spectune list")
    return chosen


def facts_table(title: str, facts: Json) -> Table:
    """Return facts as a table, a row each."""
    return Table(title=title, columns=("fact", "value"), rows=[(name, str(value)) for name, value in facts.items()])


def _reliability_table(confidence: Reliability) -> Table:
    rows = [(f"{one.low:.1f} to {one.high:.1f}", one.count, one.confidence, one.frequency) for one in confidence.bins]
    columns = ("confidence", "children", "mean", "came true")
    return Table(title="what the drafter says of a child, and how often it is so", columns=columns, rows=rows)


def _latency_table(surface: LatencySurface) -> Table:
    rows = []
    for cell in surface.measurements:
        ran = cell.failure is None
        spread = cell.spread_ms if ran else math.nan
        timing = (cell.median_ms if ran else None, spread if math.isfinite(spread) else None)
        shape = (cell.batch, cell.context_tokens, cell.tokens)
        rows.append((*shape, *timing, len(cell.repeats_ms), cell.purpose, cell.failure or ""))
    columns = ("batch", "context", "tokens", "median ms", "error ms", "repeats", "purpose", "failure")
    return Table(title="forwards", columns=columns, rows=rows)
