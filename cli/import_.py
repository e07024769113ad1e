"""`spectune import`: measurements made elsewhere enter the store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from . import options, plan_name
from .existing import as_it_is, opened_as_it_is, require_there
from .report import Settings, Table, print_json, print_table, tell

if TYPE_CHECKING:
    from ..db.rows import Records
    from ..db.store import Store
    from ..tuning.engines.counters import Counted, CounterFormat
    from ..tuning.foreign.importing import Format
    from ..tuning.foreign.told import Given

FORMATS = ("csv", "json", "sglang-bench", "sglang-sps", "vllm-metrics", "trtllm-bench", "llama-metrics")
TABLES = ("csv", "json")  # formats of what the store keeps; the others are an engine's counters
Json = dict[str, Any]  # JSON values
Place = tuple[int | None, int | None]  # batch and context
Keeping = tuple[str, Place, str | None, bool]  # plan, cell, store, whether only to say so


@click.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="By the file's suffix unless given.")
@click.option("--device", metavar="NAME", help="auto, cpu, cuda:N, a JSON file of facts, or one the store knows.")
@click.option("--model", metavar="NAME", help="A model folder, or a name or key the store knows.")
@click.option("--regime-name", metavar="NAME", help="What to call the way it was measured, e.g. vllm-0.9.")
@click.option("--plan", metavar="PLAN", callback=plan_name.plan_name, help="Counters: of the plan that ran.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Counters: of which of its cells.")
@click.option("--context", type=click.IntRange(1), metavar="N", help="Counters: of which of its cells.")
@options.store
@click.option("--dry-run", is_flag=True, help="Print what would be added, and add nothing.")
@options.as_json
@click.pass_obj
def import_(
    settings: Settings,
    /,
    file: Path,
    file_format: str | None,
    plan: str | None,
    batch: int | None,
    context: int | None,
    store: str | None,
    dry_run: bool,
    as_json: bool,
    **told: str | None,
) -> None:
    """Add measurements made elsewhere.

    FILE is a table (.csv) or a document (.json), described in docs/import.md; what spectune show -o wrote comes
    back as it was. Measurements of other software get a regime of their own, imported:NAME, and never mix with
    spectune's. What the store holds already is not added again. An engine's own counters are read with --format,
    brought to one definition of acceptance and printed. With --plan they are saved as an observation of the plan
    that the engine ran.

    \b
        spectune import timings.csv --device cuda:0 --model path/to/target --regime-name vllm-0.9
        spectune import surface.json --dry-run
        spectune import metrics.txt --format vllm-metrics
        spectune import metrics.txt --format llama-metrics --plan 3 --batch 4
    """
    if file_format is not None and file_format not in TABLES:
        _require_none(told, "is for measurements of forwards, counters are not.")
        if plan is None:
            _require_none({"batch": batch, "context": context}, "says which of a plan's cells ran; add --plan ID.")
        keeping = None if plan is None else (plan, (batch, context), store, dry_run)
        _counters(settings, file, file_format, keeping, as_json=as_json)
        return
    _require_none({"plan": plan, "batch": batch, "context": context}, "is for an engine's counters.")
    from ..db import open_store
    from ..db.url import resolve_url, shown
    from ..tuning.foreign.importing import read_import

    with _looked_into(store, dry_run) as known:  # a file with a mistake in it makes no store
        records = read_import(file, _given(known, **told), cast("Format | None", file_format))
        new = known.missing(records)
    if not dry_run:
        with open_store(store) as opened:
            new = opened.add_records(records)
    facts, place = _facts(records, new), shown(resolve_url(store))
    if as_json:
        print_json({"file": str(file), "store": place, "dry_run": dry_run, **facts})
    else:
        _print(facts)
    tell(settings, _outcome(new, dry_run, place))


def _looked_into(store: str | None, dry_run: bool) -> Store:
    """Open a store, one in memory where there is none yet; in a dry run not even its schema is upgraded."""
    from ..db import open_store

    return opened_as_it_is(store) if dry_run else open_store(as_it_is(store))


def _require_none(given: Mapping[str, object], why: str) -> None:
    """Raise a usage error for the first option that has no place here."""
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} {why}")


def _counters(settings: Settings, file: Path, file_format: str, keeping: Keeping | None, *, as_json: bool) -> None:
    from ..tuning.engines.counters import read_counters
    from .counters import print_counted

    known = cast("CounterFormat", file_format)
    found = read_counters(file, known)
    told = "kept nowhere; --plan ID keeps it with the plan that the engine was given"
    if keeping is not None:
        told = _keep(file, known, found, *keeping)
    print_counted(found, file, file_format, as_json=as_json)
    tell(settings, told)


def _keep(
    file: Path, file_format: CounterFormat, found: Counted, plan: str, place: Place, store: str | None, dry_run: bool
) -> str:
    from importlib.metadata import version

    from ..tuning.engines.counted import counted_observation, keep_observation, stored_plan

    require_there(store, "so no plan either; run: spectune plan")
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with _looked_into(store, dry_run) as opened:
        plan_id = plan_name.number_of(plan, opened)
        seen = counted_observation(
            found,
            stored_plan(opened, plan_id),
            plan_id=plan_id,
            place=place,
            file=file,
            file_format=file_format,
            spectune=version("spectune"),
            now=now,
        )
        cell = f"plan {plan_id}, batch {seen.cells[0].batch}, context {seen.cells[0].context}"
        if dry_run:
            return f"would be kept as an observation of {cell}"
        is_new = keep_observation(opened, seen)
    return f"kept as an observation of {cell}" if is_new else f"{cell} holds this file already; nothing was added"


def _given(store: Store, *, device: str | None, model: str | None, regime_name: str | None) -> Given:
    from ..tuning.foreign.told import Given
    from .device import named_device
    from .model import named_model

    return Given(
        device=None if device is None else named_device(device, store),
        model=None if model is None else named_model(model, store),
        regime_name=regime_name,
    )


def _facts(records: Records, new: Records) -> Json:
    """Return what a file brings, and how much of it is new to the store; JSON values."""
    labels = {device.fingerprint: device.label for device in records.devices}
    names = {model.key: model.name for model in records.models}
    return {
        "surfaces": [
            {
                "device": labels.get(surface.device, surface.device),
                "model": names.get(surface.model, surface.model),
                **{name: getattr(surface, name) for name in ("role", "regime", "dtype", "attention")},
                "cells": len(surface.measurements),
            }
            for surface in records.surfaces
        ],
        "traces": [
            {
                "target": names.get(trace.target, trace.target),
                "drafter": trace.drafter_name,
                **{name: getattr(trace, name) for name in ("workload", "temperature", "positions")},
            }
            for trace in records.traces
        ],
        "new": {
            "devices": len(new.devices),
            "models": len(new.models),
            "cells": new.cells,
            "traces": len(new.traces),
            "overheads": len(new.overheads),
        },
    }


def _print(facts: Json) -> None:
    for kind in ("surfaces", "traces"):
        rows = facts[kind]
        if rows:
            print_table(
                Table(title=f"{kind} of the file", columns=tuple(rows[0]), rows=[tuple(r.values()) for r in rows])
            )


def _outcome(new: Records, dry_run: bool, place: str) -> str:
    if not (new.cells or new.traces or new.overheads):
        return f"{place} holds all of it already; nothing {'to add' if dry_run else 'was added'}"
    counts = {
        "cells": new.cells,
        "host times": len(new.overheads),
        "traces": len(new.traces),
        "devices": len(new.devices),
        "models": len(new.models),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    return f"{'would add' if dry_run else 'added'} {told} to {place}"
