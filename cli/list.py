"""`spectune list`: what the store remembers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from . import options
from .command import Args, command
from .existing import NOTHING, opened_there
from .report import Table, facts_of, print_facts, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..db.store import Store

COLUMNS = {
    "devices": ("fingerprint", "label"),
    "models": ("key", "name", "parameters", "location"),
    "surfaces": ("id", "device", "model", "role", "regime", "dtype", "attention", "timings", "newest"),
    "traces": ("id", "target", "drafter", "workload", "temperature", "created"),
    "plans": ("id", "version", "state", "counts", "device", "target", "workload", "temperature", "created"),
}


@dataclass(frozen=True, kw_only=True)
class ListArgs(Args):
    """What was typed."""

    store: str | None = options.store
    as_json: bool = options.as_json


@command(ListArgs)
def list(args: ListArgs) -> None:
    """List what the store holds.

    Devices, models, latency surfaces, traces and plans; `spectune show` prints one of them. Decoders use one plan
    of each device, target, workload and temperature: the one that counts. Plans for an engine are apart. What-if
    plans are followed only where no other fits. `spectune promote` and `spectune retire` change which plan counts.

    \b
        spectune list
        spectune list --store measurements.db --json
    """
    with opened_there(args.store, NOTHING, writes=False) as opened:
        facts, url, note = _contents(opened), opened.url, opened.note
    if note:
        tell(args.settings, note)
    print_facts({"store": url, **facts}, _tables(url, facts), as_json=args.as_json)


def _tables(url: str, facts: dict[str, Any]) -> Iterator[Table | str]:
    yield f"{url}\n"
    for name, columns in COLUMNS.items():
        rows = [[_shown(row[column]) for column in columns] for row in facts[name]]
        yield Table(title=name, columns=columns, rows=rows)


def _contents(store: Store) -> dict[str, Any]:
    from ..db.sql.news import counting
    from .stored import model_names, named, surface_facts

    names, plans = model_names(store), store.plans()
    counts = counting(store, plans)
    return {
        "devices": [{"fingerprint": d.fingerprint, "label": d.label} | facts_of(d) for d in store.devices()],
        "models": [{"key": model.key} | facts_of(model) for model in store.models()],
        "surfaces": [surface_facts(row, names) for row in store.surface_rows()],
        "traces": [named(asdict(row), names) for row in store.trace_rows()],
        "plans": [named(asdict(row) | {"counts": counts.get(row.id) == row.id}, names) for row in plans],
    }


def _shown(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value
