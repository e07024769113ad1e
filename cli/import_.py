"""`spectune import`: measurements made elsewhere enter the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from . import options, plan_name
from .command import Args, command
from .existing import as_it_is, opened_as_it_is, require_there
from .option import argument, choice, flag, option, whole
from .report import Table, print_facts, tell

if TYPE_CHECKING:
    from ..db.rows import Records
    from ..db.store import Store
    from ..tuning.engines.counters import Counted, CounterFormat
    from ..tuning.foreign.importing import Format
    from ..tuning.foreign.told import Given

FORMATS = ("csv", "json", "sglang-bench", "sglang-sps", "vllm-metrics", "trtllm-bench", "llama-metrics")
TABLES = ("csv", "json")  # formats of what the store keeps; the others are an engine's counters
Json = dict[str, Any]  # JSON values
OF_A_CELL = "Counters: of which of its cells."


@dataclass(frozen=True, kw_only=True)
class ImportArgs(Args):
    """What was typed."""

    file: Path = argument(type=click.Path(path_type=Path))
    file_format: str | None = choice("By the file's suffix unless given.", FORMATS, "--format")
    device: str | None = option("auto, cpu, cuda:N, a JSON file of facts, or one the store knows.", metavar="NAME")
    model: str | None = option("A model folder, or a name or key the store knows.", metavar="NAME")
    regime_name: str | None = option("What to call the way it was measured, e.g. vllm-0.9.", metavar="NAME")
    plan: str | None = option("Counters: of the plan that ran.", metavar="PLAN", callback=plan_name.plan_name)
    batch: int | None = whole(OF_A_CELL, "--batch", "--batch-size", metavar="N")
    context: int | None = whole(OF_A_CELL, metavar="N")
    store: str | None = options.store
    dry_run: bool = flag("Print what would be added, and add nothing.")
    as_json: bool = options.as_json


@command(ImportArgs, name="import")
def import_(args: ImportArgs) -> None:
    """Add measurements made elsewhere.

    FILE is a table (.csv) or a document (.json), described in docs/reference/import-files.md; what spectune show -o
    wrote comes back as it was. Measurements of other software get a regime of their own, imported:NAME, and never mix
    with spectune's. What the store holds already is not added again. An engine's own counters are read with --format,
    brought to one definition of acceptance and printed. With --plan they are saved as an observation of the plan
    that the engine ran.

    \b
        spectune import timings.csv --device cuda:0 --model path/to/target --regime-name vllm-0.9
        spectune import surface.json --dry-run
        spectune import metrics.txt --format vllm-metrics
        spectune import metrics.txt --format llama-metrics --plan 3 --batch 4
    """
    if args.file_format is not None and args.file_format not in TABLES:
        _require_none(args, ("device", "model", "regime_name"), "is for measurements of forwards, counters are not.")
        if args.plan is None:
            _require_none(args, ("batch", "context"), "says which of a plan's cells ran; add --plan ID.")
        _counters(args, cast("CounterFormat", args.file_format))
        return
    _require_none(args, ("plan", "batch", "context"), "is for an engine's counters.")
    from ..db import open_store
    from ..db.url import resolve_url, shown
    from ..tuning.foreign.importing import read_import

    with _looked_into(args) as known:  # a file with a mistake in it makes no store
        records = read_import(args.file, _given(known, args), cast("Format | None", args.file_format))
        new = known.missing(records)
    if not args.dry_run:
        with open_store(args.store) as opened:
            new = opened.add_records(records)
    facts, place = _facts(records, new), shown(resolve_url(args.store))
    about = {"file": str(args.file), "store": place, "dry_run": args.dry_run}
    print_facts({**about, **facts}, _shown(facts), as_json=args.as_json)
    tell(args.settings, _outcome(new, args.dry_run, place))


def _looked_into(args: ImportArgs) -> Store:
    """Open a store, one in memory where there is none yet; in a dry run not even its schema is upgraded."""
    from ..db import open_store

    return opened_as_it_is(args.store) if args.dry_run else open_store(as_it_is(args.store))


def _require_none(args: ImportArgs, names: tuple[str, ...], why: str) -> None:
    """Raise a usage error for the first option that has no place here."""
    for name in names:
        if vars(args)[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} {why}")


def _counters(args: ImportArgs, file_format: CounterFormat) -> None:
    from ..tuning.engines.counters import read_counters
    from .counters import counted_facts, counted_shown

    found = read_counters(args.file, file_format)
    told = "kept nowhere; --plan ID keeps it with the plan that the engine was given"
    if args.plan is not None:
        told = _keep(args, args.plan, file_format, found)
    facts = {"file": str(args.file), "format": file_format, **counted_facts(found)}
    print_facts(facts, counted_shown(found), as_json=args.as_json)
    tell(args.settings, told)


def _keep(args: ImportArgs, plan: str, file_format: CounterFormat, found: Counted) -> str:
    from importlib.metadata import version

    from ..tuning.engines.counted import counted_observation, keep_observation, stored_plan

    require_there(args.store, "so no plan either; run: spectune plan")
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with _looked_into(args) as opened:
        plan_id = plan_name.number_of(plan, opened)
        seen = counted_observation(
            found,
            stored_plan(opened, plan_id),
            plan_id=plan_id,
            place=(args.batch, args.context),
            file=args.file,
            file_format=file_format,
            spectune=version("spectune"),
            now=now,
        )
        cell = f"plan {plan_id}, batch {seen.cells[0].batch}, context {seen.cells[0].context}"
        if args.dry_run:
            return f"would be kept as an observation of {cell}"
        is_new = keep_observation(opened, seen)
    return f"kept as an observation of {cell}" if is_new else f"{cell} holds this file already; nothing was added"


def _given(store: Store, args: ImportArgs) -> Given:
    from ..tuning.foreign.told import Given
    from .device import named_device
    from .model import named_model

    return Given(
        device=None if args.device is None else named_device(args.device, store),
        model=None if args.model is None else named_model(args.model, store),
        regime_name=args.regime_name,
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


def _shown(facts: Json) -> Iterator[Table]:
    for kind in ("surfaces", "traces"):
        if rows := facts[kind]:
            yield Table(title=f"{kind} of the file", columns=tuple(rows[0]), rows=[tuple(r.values()) for r in rows])


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
