"""`spectune db`: look after the store itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options
from .command import Args, command
from .option import argument, flag, whole
from .report import Table, facts_of, print_facts, tell

if TYPE_CHECKING:
    from ..db.exchange.check import StoreFault
    from ..db.sql.sql_store import SqlStore


@click.group(name="db")
def db() -> None:
    """Check, copy, share and prune the store.

    \b
        spectune db check
    """


@dataclass(frozen=True, kw_only=True)
class StoreArgs(Args):
    """What was typed of a store."""

    store: str | None = options.store
    as_json: bool = options.as_json


@command(StoreArgs, group=db)
def upgrade(args: StoreArgs) -> None:
    """Create the store, or bring its schema up to date.

    Every command that opens a store does so too; this one does nothing else.

    \b
        spectune db upgrade
        spectune db upgrade --store postgresql+psycopg://me@host/spectune
    """
    from ..db.sql.migrate import HEAD

    with _opened(args.store, upgrade=True) as opened:
        url = opened.url
    print_facts({"store": url, "schema": HEAD}, [f"{url} has schema {HEAD}"], as_json=args.as_json)


@command(StoreArgs, group=db)
def check(args: StoreArgs) -> None:
    """Read all of the store and list its faults.

    Looks at the file, the schema, every hash and every record, and at what plans were computed from. Nothing is
    changed. Exits with 1 where there is a fault.

    \b
        spectune db check
        spectune db check --store measurements.db --json
    """
    url, faults = _checked(args.store)
    facts = {"store": url, "faults": [facts_of(fault) for fault in faults], "is_sound": not faults}
    table = Table(title=url, columns=("where", "fault"), rows=[(each.place, each.what) for each in faults])
    print_facts(facts, [table if faults else f"{url} is sound"], as_json=args.as_json)
    click.get_current_context().exit(1 if faults else 0)


@dataclass(frozen=True, kw_only=True)
class StoreExportArgs(StoreArgs):
    """What was typed."""

    folder: Path = argument(type=click.Path(path_type=Path, file_okay=False))


@command(StoreExportArgs, group=db)
def export(args: StoreExportArgs) -> None:
    """Write the store to FOLDER as plain JSON files.

    One file per device, model, surface, host time, trace, agreement and plan, named after what it is about;
    docs/reference/store.md describes them. Profiles under way stay out.

    \b
        spectune db export measurements/
    """
    from ..db.exchange.folder import write_folder
    from ..db.exchange.records import everything

    counts: Counter[str] = Counter()
    with _opened(args.store) as opened:
        for written in write_folder(everything(opened), args.folder):
            counts[written.kind] += 1
            tell(args.settings, f"wrote {written.path}")
    words = f"wrote {counts.total()} files to {args.folder}: {_counted(counts)}"
    print_facts({"folder": str(args.folder), "files": counts}, [words], as_json=args.as_json)


@dataclass(frozen=True, kw_only=True)
class StoreImportArgs(StoreArgs):
    """What was typed."""

    source: str = argument(metavar="FOLDER|STORE")


@command(StoreImportArgs, group=db, name="import")
def import_(args: StoreImportArgs) -> None:
    """Merge a folder or another store into this one.

    SOURCE is a folder that `spectune db export` wrote, or the path or URL of another store, which is only read.
    What is here already is not added again. What is older than its like here is left out and listed. Of host times
    that holds only where newer ones have all their batches and kinds of round. All of it is added or, after an
    error, nothing.

    \b
        spectune db import measurements/
        spectune db import postgresql+psycopg://me@host/spectune --store mine.db
    """
    from ..db.exchange.folder import read_folder
    from ..db.exchange.merge import merge
    from ..db.exchange.records import everything

    with _opened(args.store, upgrade=True) as opened:
        if Path(args.source).is_dir():
            merged = merge(opened, lambda: read_folder(Path(args.source)))
        else:
            with _opened(args.source) as other:
                merged = merge(opened, lambda: everything(other))
        url = opened.url
    if not args.as_json:
        for why in merged.left_out:
            click.echo(f"left out: {why}", err=True)
    added, known = Counter(merged.added), Counter(merged.known)
    words = f"added to {url}: {_counted(added) or 'nothing'}; there already: {_counted(known) or 'nothing'}"
    print_facts({"store": url, **facts_of(merged)}, [words], as_json=args.as_json)


@dataclass(frozen=True, kw_only=True)
class PruneArgs(Args):
    """What was typed."""

    store: str | None = options.store
    observations: int | None = whole("Of each plan keep the newest N; else all.", least=0, metavar="N")
    dry_run: bool = flag("List what would be taken out, and take out nothing.")
    as_json: bool = options.as_json


@command(PruneArgs, group=db)
def prune(args: PruneArgs) -> None:
    """Take out timings and traces that nothing needs.

    The newest of every surface and setup stay, and so does everything that a plan in use or promoted was computed
    from. Plans are never taken out. Profiles that were left unfinished for 90 days are given up. What decoders
    observed stays unless --observations says how much of it; drift is judged by the newest 10,000 of a plan. The
    file of an SQLite store gets smaller.

    \b
        spectune db prune --dry-run
        spectune db prune --observations 10000
    """
    from ..db.exchange.prune import prune as taken_out

    with _opened(args.store) as opened:
        pruned, url = taken_out(opened, dry_run=args.dry_run, observations=args.observations), opened.url
    rows = [(each.kind, each.of, each.rows) for each in pruned]
    total, done = sum(each.rows for each in pruned), "would be taken" if args.dry_run else "were taken"
    shown: list[Table | str] = [Table(title=url, columns=("kind", "of", "rows"), rows=rows)] if rows else []
    facts = {"store": url, "dry_run": args.dry_run, "rows": [facts_of(each) for each in pruned]}
    print_facts(facts, [*shown, f"{total} rows {done} out of {url}"], as_json=args.as_json)


@dataclass(frozen=True, kw_only=True)
class BackupArgs(Args):
    """What was typed."""

    file: Path = argument(type=click.Path(path_type=Path))
    store: str | None = options.store


@command(BackupArgs, group=db)
def backup(args: BackupArgs) -> None:
    """Copy an SQLite store to FILE while others write.

    The copy is the store at one moment, and is opened like it. For a database server use its own tools, such as
    pg_dump.

    \b
        spectune db backup store-backup.db
    """
    from ..db.exchange.backup import back_up

    with _opened(args.store) as opened:
        back_up(opened, args.file)
        click.echo(f"wrote {args.file}, a copy of {opened.url}")


def _opened(store: str | None, *, upgrade: bool = False) -> SqlStore:
    from ..db.sql.sql_store import SqlStore
    from ..db.url import is_service, named_place, resolve_url
    from ..errors import StoreError

    place = named_place(store)
    if is_service(place):
        raise StoreError(
            "a service looks after its own store; run spectune db beside it, with --store URL of its database"
        )
    return SqlStore(resolve_url(place), upgrade=upgrade)


def _checked(store: str | None) -> tuple[str, list[StoreFault]]:
    """Return where a store is and its faults; one that cannot be opened has that fault."""
    from ..db.exchange.check import StoreFault, faults_of
    from ..db.url import resolve_url, shown
    from ..errors import StoreError

    try:
        with _opened(store) as opened:
            return opened.url, list(faults_of(opened))
    except StoreError as error:
        url = shown(resolve_url(store))
        return url, [StoreFault(place=url, what=str(error))]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items())
