"""`spectune token`: who may ask a service, and for what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from . import options
from .command import Args, command
from .option import argument, choice, option
from .report import Table, facts_of, print_facts, tell

if TYPE_CHECKING:
    from datetime import datetime

    from ..db.jobs.access import Scope
    from ..db.sql.sql_store import SqlStore

SCOPES = ("read", "write", "admin")
UNITS = {"h": 3600, "d": 86_400, "w": 604_800}
COLUMNS = ("name", "scope", "created", "expires", "revoked")


def _moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> datetime | None:
    """Return when a token expires, from `90d` or an ISO date."""
    from datetime import UTC, datetime, timedelta

    if text is None:
        return None
    if read := re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", text):
        return datetime.now(UTC) + timedelta(seconds=int(read[1]) * UNITS[read[2]])
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write for example 12h, 90d, 52w or 2027-01-31") from None


@click.group()
def token() -> None:
    """Make, list and revoke a service's tokens.

    Tokens are in the store that the service serves; run this where the store is. A running service sees a change
    within a second.

    \b
        spectune token create ci --scope write --expires 90d
        spectune token list
        spectune token revoke ci
    """


@dataclass(frozen=True, kw_only=True)
class TokenCreateArgs(Args):
    """What was typed."""

    name: str = argument()
    scope: Scope = choice("What it allows.", SCOPES, default="read")
    expires: datetime | None = option(
        "After 12h, 90d, 52w, or at an ISO date; else never.", metavar="TIME", callback=_moment
    )
    store: str | None = options.store


@command(TokenCreateArgs, group=token)
def create(args: TokenCreateArgs) -> None:
    """Make a token and print it, this once.

    \b
        spectune token create laptop --scope read --expires 52w
    """
    from ..db.jobs.access import Tokens

    with _database(args.store) as opened:
        made = Tokens(opened).create(args.name, args.scope, args.expires)
        click.echo(made)
        tell(args.settings, f"kept in {opened.url} as a hash only: this is the one time it can be read")


@dataclass(frozen=True, kw_only=True)
class TokenListArgs(Args):
    """What was typed."""

    store: str | None = options.store
    as_json: bool = options.as_json


@command(TokenListArgs, group=token, name="list")
def list_(args: TokenListArgs) -> None:
    """List tokens; what they are is not known.

    \b
        spectune token list --json
    """
    from ..db.jobs.access import Tokens

    with _database(args.store) as opened:
        rows = Tokens(opened).rows()
    facts = [{name: value for name, value in facts_of(row).items() if name in COLUMNS} for row in rows]
    table = Table(title="tokens", columns=COLUMNS, rows=[[fact[name] for name in COLUMNS] for fact in facts])
    print_facts(facts, [table], as_json=args.as_json)


@dataclass(frozen=True, kw_only=True)
class TokenRevokeArgs(Args):
    """What was typed."""

    name: str = argument()
    store: str | None = options.store


@command(TokenRevokeArgs, group=token)
def revoke(args: TokenRevokeArgs) -> None:
    """Refuse a token from now on.

    \b
        spectune token revoke laptop
    """
    from ..db.jobs.access import Tokens

    with _database(args.store) as opened:
        Tokens(opened).revoke(args.name)
        tell(args.settings, f"{args.name} is revoked in {opened.url}")


def _database(store: str | None) -> SqlStore:
    """Open the store, which must be the database itself: a service makes no tokens."""
    from ..db.sql.sql_store import SqlStore
    from ..db.url import is_service, named_place, resolve_url
    from ..errors import RequestError

    place = named_place(store)
    if is_service(place):
        raise RequestError("tokens are made where the database is, not through a service; name it with --store")
    return SqlStore(resolve_url(place))
