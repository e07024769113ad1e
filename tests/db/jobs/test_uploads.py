"""Uploads: parts in their order, checked as a whole, seen by their own token only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from spectune.db.jobs.uploads import NoUploadError, TooManyUploadsError, UploadConflictError, Uploads
from spectune.db.sql.service_tables import UploadPartTable, UploadTable
from spectune.db.sql.sql_store import SqlStore
from spectune.db.sql.tables import utc_ago
from spectune.db.url import resolve_url
from spectune.errors import RequestError

from ...support.fresh_store import fresh_store
from ...support.postgres_server import PostgresServer, postgres

__all__ = ["postgres"]

BYTES = b"one two three"
SHA256 = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with fresh_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def uploads(store: SqlStore) -> Uploads:
    return Uploads(store, most_bytes=100, most_open=2)


def begin(uploads: Uploads, size: int = len(BYTES), sha256: str = SHA256) -> str:
    return uploads.begin("ci", kind="trace", target="POST /v1/traces", size=size, sha256=sha256).key


def test_parts_become_the_whole_again(uploads: Uploads) -> None:
    key = begin(uploads)
    assert uploads.add("ci", key, 0, BYTES[:4]).received == 4
    assert uploads.add("ci", key, 4, BYTES[4:]).received == len(BYTES)
    assert uploads.content("ci", key) == BYTES


def test_a_part_sent_again_is_refused_and_changes_nothing(uploads: Uploads) -> None:
    key = begin(uploads)
    uploads.add("ci", key, 0, BYTES[:4])
    for position in (0, 3, 5):
        with pytest.raises(UploadConflictError, match="byte 4 comes next"):
            uploads.add("ci", key, position, b"abcd")
    uploads.add("ci", key, 4, BYTES[4:])
    assert uploads.content("ci", key) == BYTES


def test_an_incomplete_upload_has_no_content(uploads: Uploads) -> None:
    key = begin(uploads)
    uploads.add("ci", key, 0, BYTES[:4])
    with pytest.raises(UploadConflictError, match="4 of 13 bytes"):
        uploads.content("ci", key)


def test_other_bytes_than_announced_are_refused(uploads: Uploads) -> None:
    key = begin(uploads)
    uploads.add("ci", key, 0, BYTES.upper())
    with pytest.raises(RequestError, match="not the announced"):
        uploads.content("ci", key)


def test_more_bytes_than_announced_are_refused(uploads: Uploads) -> None:
    key = begin(uploads)
    with pytest.raises(RequestError, match="announced"):
        uploads.add("ci", key, 0, BYTES + b"!")
    assert uploads.find("ci", key).received == 0


def test_nobody_meets_another_token_s_upload(uploads: Uploads) -> None:
    key = begin(uploads)
    with pytest.raises(NoUploadError):
        uploads.find("somebody", key)
    with pytest.raises(NoUploadError):
        uploads.add("somebody", key, 0, BYTES)


def test_an_ended_upload_keeps_no_bytes_and_takes_none(store: SqlStore, uploads: Uploads) -> None:
    key = begin(uploads)
    uploads.add("ci", key, 0, BYTES)
    uploads.end("ci", key)
    with store._reading() as session:
        assert session.query(UploadPartTable).count() == 0
    for refused in (lambda: uploads.add("ci", key, 13, b""), lambda: uploads.end("ci", key)):
        with pytest.raises(NoUploadError, match="ended"):
            refused()


@pytest.mark.parametrize(("size", "sha256"), [(0, SHA256), (101, SHA256), (1, "abc"), (1, SHA256.upper())])
def test_what_cannot_be_is_not_begun(uploads: Uploads, size: int, sha256: str) -> None:
    with pytest.raises(RequestError):
        begin(uploads, size, sha256)


def test_a_token_has_only_so_many_open_uploads(uploads: Uploads) -> None:
    begin(uploads)
    key = begin(uploads)
    with pytest.raises(TooManyUploadsError, match="2 uploads are under way"):
        begin(uploads)
    uploads.end("ci", key)
    begin(uploads)


def touch(store: SqlStore, key: str, minutes_ago: float) -> None:
    touched = utc_ago(60.0 * minutes_ago)
    with store._writing() as session:
        session.execute(update(UploadTable).where(UploadTable.key == key).values(touched=touched))


def test_an_upload_that_got_no_part_for_long_makes_room_for_another(store: SqlStore, uploads: Uploads) -> None:
    keys = [begin(uploads), begin(uploads)]
    for key, minutes_ago in zip(keys, (11, 12), strict=True):
        touch(store, key, minutes_ago)
    new = begin(uploads)
    assert [uploads.find("ci", key).ended is None for key in (*keys, new)] == [True, False, True]


def test_an_upload_of_another_token_makes_no_room(store: SqlStore, uploads: Uploads) -> None:
    other = uploads.begin("somebody", kind="trace", target="POST /v1/traces", size=len(BYTES), sha256=SHA256).key
    touch(store, other, 1000)
    begin(uploads), begin(uploads)
    with pytest.raises(TooManyUploadsError):
        begin(uploads)
    assert uploads.find("somebody", other).ended is None


def test_a_complete_upload_waits_an_hour_for_its_turn_to_be_finished(store: SqlStore, uploads: Uploads) -> None:
    whole, part = begin(uploads), begin(uploads)
    uploads.add("ci", whole, 0, BYTES)
    touch(store, whole, 50)
    touch(store, part, 11)
    begin(uploads)
    assert [uploads.find("ci", key).ended is None for key in (whole, part)] == [True, False]
    with pytest.raises(TooManyUploadsError):
        begin(uploads)
    touch(store, whole, 61)
    begin(uploads)


def test_an_upload_that_somebody_is_at_makes_no_room(postgres: PostgresServer) -> None:
    with SqlStore(resolve_url(postgres.new_database())) as store:
        uploads = Uploads(store, most_bytes=100, most_open=1)
        key = begin(uploads)
        touch(store, key, 11)
        with store._writing() as session:
            session.scalar(select(UploadTable).filter_by(key=key).with_for_update())
            with pytest.raises(TooManyUploadsError):
                begin(uploads)


def test_an_upload_nobody_goes_on_with_is_forgotten(store: SqlStore, uploads: Uploads) -> None:
    old, new = begin(uploads), begin(uploads)
    uploads.add("ci", old, 0, BYTES[:4])
    with store._writing() as session:
        session.execute(update(UploadTable).where(UploadTable.key == old).values(touched="2020"))
    assert uploads.drop_old() == 1
    assert uploads.find("ci", new).received == 0
    with pytest.raises(NoUploadError):
        uploads.find("ci", old)
