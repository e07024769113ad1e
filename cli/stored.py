"""One record of the store in the forms a command prints it in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..db.plan_rows import counting
from ..db.plans import PlanRow
from ..db.store import Store
from ..db.surface_rows import SurfaceRow
from ..errors import NoPlanError, StoreError
from ..planner.plans.document import plan_from_json
from ..planner.plans.validation import Validation
from ..profiler.confidence import step_reliability
from ..profiler.records.calibration import Reliability
from ..profiler.records.document import SurfaceDocument, TraceDocument
from ..profiler.records.surface import LatencySurface
from ..profiler.records.wire import readable, to_json
from ..report.plan import plan_figure
from ..report.surface import surface_figure
from ..report.trace import trace_figure
from ..tuning.engines.counted import imported_observations
from .cells import plan_table, published_table, settings_table, validation_table
from .counters import counted_table
from .report import Table, facts_of

if TYPE_CHECKING:
    from ..report.figure import Figure

Json = dict[str, Any]  # JSON values
VERIFY = "verify"  # role of a target's forwards over drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One record: as it is kept, as facts for programs, as tables and a picture for people."""

    document: str
    facts: Json
    tables: tuple[Table, ...]
    draw: Callable[[], Figure]


def stored_plan(store: Store, number: int | None) -> Stored:
    """Return a plan and its validations; where no number is given, the one that counts for what was planned last.

    Raises:
        NoPlanError: the store holds no plan.
        StoreError: there is no such plan, or it was changed after it was stored.
    """
    row = _last_planned(store) if number is None else store.plan_row(number)
    document = store.plan(row.id)
    plan = plan_from_json(document)
    texts = store.validations(row.id)
    validations = readable(Validation, texts)
    unreadable = len(texts) - len(validations)
    counted = imported_observations(store, row.id)
    about = named(asdict(row), model_names(store))
    return Stored(
        document=document,
        facts={
            **about,
            "plan": json.loads(document),
            "validations": [facts_of(each) for each in validations],
            "unreadable_validations": unreadable,
            "imported": [facts_of(each) for each in counted],
        },
        tables=(
            _facts_table(f"plan {row.id}", about | ({"unreadable validations": unreadable} if unreadable else {})),
            plan_table(plan),
            *([published_table(plan)] if any(cell.published for cell in plan.cells) else []),
            *(validation_table(each) for each in validations),
            *([counted_table(counted)] if counted else []),
            settings_table(plan),
        ),
        draw=lambda: plan_figure(plan),
    )


def _last_planned(store: Store) -> PlanRow:
    """Return the plan that counts for what was planned last; the newest where all are retired."""
    rows = {row.id: row for row in store.plans()}
    if not rows:
        raise NoPlanError("any model", store.url)
    counts = counting(store, rows.values())
    return rows[counts[max(counts)] if counts else max(rows)]


def stored_surface(store: Store, number: int | None) -> Stored:
    """Return a latency surface; where no number is given the target's that was timed last, or else any model's.

    Raises:
        StoreError: there is no such surface.
    """
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
        tables=(_facts_table(f"surface {row.id}", about), _latency_table(surface)),
        draw=lambda: surface_figure(surface, device=device, model=about["model"]),
    )


def stored_trace(store: Store, number: int | None) -> Stored:
    """Return a trace, without its tokens; the newest where no number is given.

    Raises:
        StoreError: there is no such trace.
    """
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
            _facts_table(f"trace {chosen}", about),
            Table(title="the target's token is the drafter's", columns=("rank", "share"), rows=[*enumerate(ranks)]),
            _reliability_table(confidence),
        ),
        draw=lambda: trace_figure(trace, target=about["target"]),
    )


KINDS: Mapping[str, Callable[[Store, int | None], Stored]] = {
    "plan": stored_plan,
    "surface": stored_surface,
    "trace": stored_trace,
}


def surface_facts(row: SurfaceRow, names: Mapping[str, str]) -> Json:
    """Return what a surface is about, how many timings were ever kept of it and when the last; JSON values."""
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


def _facts_table(title: str, facts: Json) -> Table:
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
