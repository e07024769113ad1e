"""One plan, of the store or of a file, in the forms a command prints it in."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ..db.rows import PlanRow
from ..db.sql.news import counting
from ..db.store import Store
from ..errors import NoPlanError
from ..planner.plans.document import plan_from_json
from ..planner.plans.plan import Plan
from ..planner.plans.validation import Validation
from ..planner.reasons.verdict import verdict_lines
from ..profiler.records.wire import readable
from ..report.plan import plan_figure
from ..tuning.engines.counted import imported_observations
from .cells import plan_table, published_table, settings_table, validation_table
from .counters import counted_table
from .plan_name import document_of, is_number, number_in
from .report import Table, facts_of
from .stored import Json, Stored, facts_table, model_names, named

FINGERPRINTS = ("device", "device_kind", "content_hash")  # shown behind all other facts


def named_plan(store: Store, name: str | None) -> Stored:
    """Return the plan by number or file, with all the store knows of it; without a name the one in use.

    The one in use is for what was planned last; a file need not be in the store.

    Raises:
        NoPlanError: no plan was named, and the store holds none.
        StoreError: there is no such plan, or it was changed after it was stored.
        PlanError: the file holds no plan.
    """
    if name is None:
        return _of_store(store, _last_planned(store))
    if is_number(name):
        return _of_store(store, store.plan_row(int(name)))
    document = document_of(Path(name))
    number = number_in(document, store)
    return _of_file(document, name) if number is None else _of_store(store, store.plan_row(number))


def plan_in_file(name: str) -> Stored:
    """Return the plan of a file, where there is no store."""
    return _of_file(document_of(Path(name)), name)


def _of_store(store: Store, row: PlanRow) -> Stored:
    document = store.plan(row.id)
    plan = plan_from_json(document)
    texts = store.validations(row.id)
    validations = readable(Validation, texts)
    unreadable = len(texts) - len(validations)
    counted = imported_observations(store, row.id)
    about = named(asdict(row), model_names(store))
    shown = _fingerprints_last(about | ({"unreadable validations": unreadable} if unreadable else {}))
    return Stored(
        document=document,
        facts={
            **about,
            "verdict": verdict_lines(plan),
            "plan": json.loads(document),
            "validations": [facts_of(each) for each in validations],
            "unreadable_validations": unreadable,
            "imported": [facts_of(each) for each in counted],
        },
        verdict=tuple(verdict_lines(plan)),
        tables=(
            *_tables(plan),
            *(validation_table(each) for each in validations),
            *([counted_table(counted)] if counted else []),
            settings_table(plan),
            facts_table(f"plan {row.id}", shown),
        ),
        draw=lambda: plan_figure(plan),
    )


def _of_file(document: str, name: str) -> Stored:
    plan = plan_from_json(document)
    about = {"workload": plan.workload, "temperature": plan.temperature, "created": plan.provenance.created}
    about |= {"file": name, "target": plan.target.name, "device": plan.device.fingerprint}
    return Stored(
        document=document,
        facts={
            **about,
            "verdict": verdict_lines(plan),
            "plan": json.loads(document),
            "validations": [],
            "unreadable_validations": 0,
            "imported": [],
        },
        verdict=tuple(verdict_lines(plan)),
        tables=(*_tables(plan), settings_table(plan), facts_table(f"plan of {name}", _fingerprints_last(about))),
        draw=lambda: plan_figure(plan),
    )


def _tables(plan: Plan) -> list[Table]:
    published = [published_table(plan)] if any(cell.published for cell in plan.cells) else []
    return [plan_table(plan), *published]


def _fingerprints_last(about: Json) -> Json:
    return dict(sorted(about.items(), key=lambda fact: fact[0] in FINGERPRINTS))


def _last_planned(store: Store) -> PlanRow:
    """Return the plan that counts for what was planned last; the newest where all are retired."""
    rows = {row.id: row for row in store.plans()}
    if not rows:
        raise NoPlanError("any model", store.url)
    counts = counting(store, rows.values())
    return rows[counts[max(counts)] if counts else max(rows)]
