"""`spectune db`: look after the store itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options
from .report import Settings, Table, facts_of, print_json, print_table, tell

if TYPE_CHECKING:
    from ..db.exchange.check import StoreFault
    from ..db.exchange.merge import Merged
    from ..db.sql.sql_store import SqlStore


@click.group(name="db")
def db() -> None:
    """Check, copy, share and prune the store.

    \b
        spectune db check
    """


@db.command()
@options.store
@options.as_json
def upgrade(store: str | None, as_json: bool) -> None:
    """Create the store, or bring its schema up to date.

    Every command that opens a store does so too; this one does nothing else.

    \b
        spectune db upgrade
        spectune db upgrade --store postgresql+psycopg://me@host/spectune
    """
    from ..db.sql.migrate import HEAD

    with _opened(store, upgrade=True) as opened:
        url = opened.url
    if as_json:
        print_json({"store": url, "schema": HEAD})
    else:
        click.echo(f"{url} has schema {HEAD}")


@db.command()
@options.store
@options.as_json
@click.pass_context
def check(context: click.Context, store: str | None, as_json: bool) -> None:
    """Read all of the store and list its faults.

    Looks at the file, the schema, every hash and every record, and at what plans were computed from. Nothing is
    changed. Exits with 1 where there is a fault.

    \b
        spectune db check
        spectune db check --store measurements.db --json
    """
    url, faults = _checked(store)
    if as_json:
        print_json({"store": url, "faults": [facts_of(fault) for fault in faults], "is_sound": not faults})
    elif faults:
        print_table(Table(title=url, columns=("where", "fault"), rows=[(each.place, each.what) for each in faults]))
    else:
        click.echo(f"{url} is sound")
    context.exit(1 if faults else 0)


@db.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@options.store
@options.as_json
@click.pass_obj
def export(settings: Settings, folder: Path, store: str | None, as_json: bool) -> None:
    """Write the store to FOLDER as plain JSON files.

    One file per device, model, surface, host time, trace, agreement and plan, named after what it is about;
    docs/store.md describes them. Profiles under way stay out.

    \b
        spectune db export measurements/
    """
    from ..db.exchange.folder import write_folder
    from ..db.exchange.records import everything

    counts: Counter[str] = Counter()
    with _opened(store) as opened:
        for written in write_folder(everything(opened), folder):
            counts[written.kind] += 1
            tell(settings, f"wrote {written.path}")
    if as_json:
        print_json({"folder": str(folder), "files": counts})
    else:
        click.echo(f"wrote {counts.total()} files to {folder}: {_counted(counts)}")


@db.command(name="import")
@click.argument("source", metavar="FOLDER|STORE")
@options.store
@options.as_json
def import_(source: str, store: str | None, as_json: bool) -> None:
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

    with _opened(store, upgrade=True) as opened:
        if Path(source).is_dir():
            merged = merge(opened, lambda: read_folder(Path(source)))
        else:
            with _opened(source) as other:
                merged = merge(opened, lambda: everything(other))
        url = opened.url
    _tell_merged(merged, url, as_json)


@db.command()
@options.store
@click.option("--observations", metavar="N", type=click.IntRange(0), help="Of each plan keep the newest N; else all.")
@click.option("--dry-run", is_flag=True, help="List what would be taken out, and take out nothing.")
@options.as_json
def prune(store: str | None, observations: int | None, dry_run: bool, as_json: bool) -> None:
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

    with _opened(store) as opened:
        pruned, url = taken_out(opened, dry_run=dry_run, observations=observations), opened.url
    if as_json:
        print_json({"store": url, "dry_run": dry_run, "rows": [facts_of(each) for each in pruned]})
        return
    if pruned:
        rows = [(each.kind, each.of, each.rows) for each in pruned]
        print_table(Table(title=url, columns=("kind", "of", "rows"), rows=rows))
    total = sum(each.rows for each in pruned)
    click.echo(f"{total} rows {'would be taken' if dry_run else 'were taken'} out of {url}")


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@options.store
def backup(file: Path, store: str | None) -> None:
    """Copy an SQLite store to FILE while others write.

    The copy is the store at one moment, and is opened like it. For a database server use its own tools, such as
    pg_dump.

    \b
        spectune db backup store-backup.db
    """
    from ..db.exchange.backup import back_up

    with _opened(store) as opened:
        back_up(opened, file)
        click.echo(f"wrote {file}, a copy of {opened.url}")


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


def _tell_merged(merged: Merged, url: str, as_json: bool) -> None:
    if as_json:
        print_json({"store": url, **facts_of(merged)})
        return
    for why in merged.left_out:
        click.echo(f"left out: {why}", err=True)
    added, known = Counter(merged.added), Counter(merged.known)
    click.echo(f"added to {url}: {_counted(added) or 'nothing'}; there already: {_counted(known) or 'nothing'}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items())
