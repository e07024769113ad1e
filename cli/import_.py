"""`spectune import`: measurements made elsewhere enter the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from . import options
from .existing import as_it_is
from .report import Table, print_json, print_table, tell
from .settings import Settings

if TYPE_CHECKING:
    from ..db.imports import Records
    from ..db.store import Store
    from ..tuning.engine_counters import CounterFormat
    from ..tuning.foreign import Given
    from ..tuning.importing import Format

FORMATS = ("csv", "json", "sglang-bench", "sglang-sps", "vllm-metrics", "trtllm-bench", "llama-metrics")
TABLES = ("csv", "json")  # formats of what the store keeps; the others are an engine's counters
Json = dict[str, Any]  # JSON values


@click.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="By the file's suffix unless given.")
@click.option("--device", metavar="NAME", help="auto, cpu, cuda:N, a JSON file of facts, or one the store knows.")
@click.option("--model", metavar="NAME", help="A model folder, or a name or key the store knows.")
@click.option("--regime-name", metavar="NAME", help="What to call the way it was measured, e.g. vllm-0.9.")
@options.store
@click.option("--dry-run", is_flag=True, help="Print what would be added, and add nothing.")
@options.as_json
@click.pass_obj
def import_(
    settings: Settings,
    /,
    file: Path,
    file_format: str | None,
    store: str | None,
    dry_run: bool,
    as_json: bool,
    **told: str | None,
) -> None:
    """Add measurements made elsewhere.

    FILE is a table (.csv) or a document (.json), described in docs/import.md; what spectune show -o
    wrote comes back as it was. Measurements of other software get a regime of their own,
    imported:NAME, and never mix with spectune's. What the store holds already is not added again.
    An engine's own counters are read with --format, brought to one definition of acceptance and
    printed; they are no recording, so the store does not keep them.

    \b
        spectune import timings.csv --device cuda:0 --model path/to/target --regime-name vllm-0.9
        spectune import surface.json --dry-run
        spectune import metrics.txt --format vllm-metrics
    """
    if file_format is not None and file_format not in TABLES:
        _show_counters(settings, file, file_format, told, as_json=as_json)
        return
    from ..db.store import open_store
    from ..db.url import resolve_url, shown
    from ..tuning.importing import read_import

    with open_store(as_it_is(store)) as known:  # a file with a mistake in it makes no store
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


def _show_counters(
    settings: Settings, file: Path, file_format: str, told: dict[str, str | None], *, as_json: bool
) -> None:
    """Print what an engine counted."""
    from ..tuning.engine_counters import read_counters
    from .counters import print_counted

    given = [name for name, value in told.items() if value is not None]
    if given:
        raise click.UsageError(f"--{given[0].replace('_', '-')} is for measurements that are kept, counters are not.")
    found = read_counters(file, cast("CounterFormat", file_format))
    print_counted(found, file, file_format, as_json=as_json)
    tell(settings, "kept nowhere: counters tell no positions of a text, so they are no acceptance trace")


def _given(store: Store, *, device: str | None, model: str | None, regime_name: str | None) -> Given:
    from ..tuning.foreign import Given
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
    counts = f"{new.cells} cells, {len(new.traces)} traces, {len(new.devices)} devices, {len(new.models)} models"
    return f"{'would add' if dry_run else 'added'} {counts} to {place}"
