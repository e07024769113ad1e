"""Tokens: shown once, kept as hashes, refused once they expired or were revoked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spectune.db.jobs.access import Tokens
from spectune.errors import RequestError, StoreError

from ...support.fresh_store import fresh_store

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def tokens(file: Path) -> Iterator[Tokens]:
    with fresh_store(file.parent) as store:
        yield Tokens(store)


def test_a_token_is_found_by_its_hash_and_nothing_else_of_it_is_kept(tokens: Tokens, file: Path) -> None:
    token = tokens.create("ci", "write")
    row = tokens.find(hashlib.sha256(token.encode()).hexdigest())
    assert row is not None and (row.name, row.scope) == ("ci", "write")
    kept = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert token.encode() not in kept and token[4:].encode() not in kept


def test_tokens_are_long_and_never_the_same(tokens: Tokens) -> None:
    made = {tokens.create(f"token-{number}", "read") for number in range(20)}
    assert len(made) == 20 and all(token.startswith("spt_") and len(token) >= 47 for token in made)


@pytest.mark.parametrize(
    ("scope", "allowed"), [("read", ["read"]), ("write", ["read", "write"]), ("admin", ["read", "write", "admin"])]
)
def test_a_scope_holds_those_before_it(tokens: Tokens, scope, allowed: list[str]) -> None:
    tokens.create("any", scope)
    (row,) = tokens.rows()
    assert [each for each in ("read", "write", "admin") if row.allows(each)] == allowed


def test_a_token_holds_until_it_expires(tokens: Tokens) -> None:
    tokens.create("short", "read", datetime(2099, 1, 1))  # without a zone it is UTC
    (row,) = tokens.rows()
    assert row.holds_at("2098-12-31T23:59:59.999999+00:00")
    assert not row.holds_at("2099-01-01T00:00:00.000000+00:00")


def test_a_revoked_token_never_holds_again_and_its_name_stays_taken(tokens: Tokens) -> None:
    tokens.create("ci", "read")
    tokens.revoke("ci")
    tokens.revoke("ci")
    assert not tokens.rows()[0].holds_at("2000-01-01T00:00:00.000000+00:00")
    with pytest.raises(StoreError, match="already there"):
        tokens.create("ci", "read")


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "-x", "x" * 65, "'; DROP TABLE spectune_token; --"])
def test_a_name_that_could_be_mistaken_is_refused(tokens: Tokens, name: str) -> None:
    with pytest.raises(RequestError, match="no name for a token"):
        tokens.create(name, "read")


def test_a_token_that_has_expired_already_is_not_made(tokens: Tokens) -> None:
    with pytest.raises(RequestError, match="is over"):
        tokens.create("old", "read", datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(RequestError, match="scope is one of"):
        tokens.create("odd", "root", LATER)  # type: ignore[arg-type]  # what a user may type
    assert not tokens.are_there()


def test_an_unknown_token_cannot_be_revoked(tokens: Tokens) -> None:
    with pytest.raises(StoreError, match="no token 'nobody'"):
        tokens.revoke("nobody")
