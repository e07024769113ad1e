"""Files that cannot be a store are refused untouched; files that can are shared between processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from spectune.db import Store, open_store
from spectune.db.sql.engines import one_line_errors
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url
from spectune.errors import StoreError
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement

SURFACE = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32")
SETUP: dict[str, Any] = {"target": "target", "workload": "chat", "temperature": 0.7}
WRITER = """
import sys
from spectune.db import open_store
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.measurement import Measurement

surface = SurfaceKey(device="device", model="model", role="verify", regime="eager", dtype="float32")
with open_store(sys.argv[1]) as store:
    for tokens in range(1, 101):
        batch = int(sys.argv[2])
        cell = Measurement(batch=batch, context_tokens=0, tokens=tokens, repeats_ms=(1.0,))
        store.add_measurements(surface, [cell])
"""


def filled_store(file: Path) -> bytes:
    with open_store(str(file)) as store:
        store.add_measurements(SURFACE, [cell(tokens) for tokens in range(1, 200)])
    return file.read_bytes()


def cell(tokens: int, ms: float = 1.0) -> Measurement:
    return Measurement(batch=1, context_tokens=0, tokens=tokens, repeats_ms=(ms,))


def refusal(place: str) -> str:
    with pytest.raises(StoreError) as refused:
        open_store(place)
    return str(refused.value)


def assert_one_line_and_unchanged(message: str, file: Path, before: bytes) -> None:
    assert "\n" not in message
    assert str(file) in message
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("text", [b"x", b"not a database\n" * 1000, b"SQLite format 2\0" + bytes(4096)])
def test_a_file_of_something_else_is_refused_unchanged(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "store.db"
    file.write_bytes(text)
    message = refusal(str(file))
    assert "is not an SQLite file" in message
    assert_one_line_and_unchanged(message, file, text)


def test_a_truncated_store_is_refused_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    cut = filled_store(file)[:9000]
    file.write_bytes(cut)
    message = refusal(str(file))
    assert "malformed; restore the file" in message
    assert_one_line_and_unchanged(message, file, cut)


def test_a_store_with_a_destroyed_first_page_is_refused_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    whole = filled_store(file)
    damaged = whole[:100] + b"\xff" * 3996 + whole[4096:]
    file.write_bytes(damaged)
    message = refusal(str(file))
    assert "malformed; restore the file" in message
    assert_one_line_and_unchanged(message, file, damaged)


def test_damage_further_in_is_found_when_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    whole = filled_store(file)
    file.write_bytes(whole[:-8192] + b"\xff" * 8192)
    with open_store(str(file)) as store, pytest.raises(StoreError, match="malformed; restore the file"):
        store.surfaces()


def test_text_that_is_no_text_is_damage_too(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    filled_store(file)
    with closing(sqlite3.connect(file)) as there, there:
        for (trigger,) in there.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            there.execute(f"DROP TRIGGER {trigger}")
        there.execute("UPDATE spectune_measurement SET document = CAST(x'ff' AS TEXT)")
    with open_store(str(file)) as store, pytest.raises(StoreError, match="the file is damaged; restore it"):
        store.surfaces()


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.surfaces() == []


def test_missing_folders_are_created(tmp_path: Path) -> None:
    open_store(str(tmp_path / "a" / "b" / "store.db")).close()
    assert (tmp_path / "a" / "b" / "store.db").is_file()


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == f"{tmp_path} is a folder; name a file, e.g. {tmp_path}/store.db"


def test_a_path_below_a_file_is_refused_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"text")
    assert_one_line_and_unchanged(refusal(str(file / "store.db")), file, b"text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert f"{tmp_path} may not be written" in refusal(str(tmp_path / "store.db"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("has_room", [False, True])
def test_a_store_that_may_only_be_read_is_read_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool, is_open: bool
) -> None:
    file = tmp_path / "store with a % and a ?.db"
    filled_store(file)
    with ExitStack() as stack:
        if is_open:
            stack.enter_context(open_store(str(file)))
        monkeypatch.setattr("os.access", lambda path, mode: has_room and path == tmp_path)
        with open_store(str(file), writes=False) as store:
            assert store.surfaces()
            with pytest.raises(StoreError, match="readonly database; change the permissions"):
                store.add_measurements(SURFACE, [cell(1, 2.5)])
        assert f"{file} may not be written" in refusal(str(file))
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as two users")
def test_whoever_reads_the_store_of_another_user_does_not_lock_its_owner_out() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "store.db"
        filled_store(file)
        os.chmod(folder, 0o777)
        os.chown(file, 1001, 1001)
        with acting_as(1002), open_store(str(file), writes=False) as store:
            assert store.surfaces()
        with acting_as(1001), open_store(str(file)) as store:
            store.add_measurements(SURFACE, [cell(1, 2.5)])


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    os.setresuid(user, user, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_store_that_may_only_be_read_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(StoreError, match="may not be written"):
        open_store(str(tmp_path / "store.db"), writes=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["nosuch://host/name", "ftp://host/name"])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    scheme = url.split(":")[0]
    assert f"no database is known by '{scheme}'" in refusal(url)


def test_an_unknown_scheme_does_not_print_the_password() -> None:
    message = refusal("nosuch://me:hunter2@host/name")
    assert "nosuch://me:***@host/name" in message
    assert "hunter2" not in message


def test_an_option_the_driver_refuses_is_one_line(tmp_path: Path) -> None:
    message = refusal(f"sqlite:///{tmp_path}/store.db?timeout=soon")
    assert "has an option the driver refuses: " in message
    assert "'soon'" in message


def test_an_asynchronous_driver_is_not_used() -> None:
    assert "asynchronous" in refusal("sqlite+aiosqlite://") or "'aiosqlite'" in refusal("sqlite+aiosqlite://")


def test_a_database_error_is_one_line_and_hides_the_password() -> None:
    answer = Exception("login of me with hunter2 failed\n  try later")
    with pytest.raises(StoreError) as refused, one_line_errors(make_url("mysql://me:hunter2@host/name")):
        raise OperationalError("SELECT 1", {}, answer)
    assert str(refused.value).startswith("mysql://me:***@host/name: login of me with *** failed try later; ")
    assert refused.value.__cause__ is None


def test_a_store_file_keeps_a_write_ahead_log(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store.db")).close()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_foreign_keys_are_enforced(tmp_path: Path) -> None:
    with SqlStore(resolve_url(str(tmp_path / "store.db"))) as store, store._reading() as session:
        assert session.connection().exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_what_was_added_is_there_after_reopening(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_measurements(SURFACE, [cell(1, 2.5)])
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.surfaces()[0].latency(1, 0, 1).ms == 2.5


def test_every_timing_is_kept_although_the_newest_wins(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with open_store(str(file)) as store:
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        store.add_measurements(SURFACE, [cell(1, 2.0)])
    texts = read(file, "SELECT document FROM spectune_measurement ORDER BY id")
    assert [json.loads(text)["repeats_ms"] for (text,) in texts] == [[1.0], [2.0]]


def test_a_changed_plan_is_refused_by_its_number(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        plan_id = store.add_plan("{}", device="device", device_kind="kind", **SETUP)
        read(tmp_path / "store.db", "UPDATE spectune_plan SET document = document || ' '")
        with pytest.raises(StoreError, match=rf"plan {plan_id} .* was changed"):
            store.plan(plan_id)


def test_a_damaged_record_is_refused_by_its_row(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        store.add_measurements(SURFACE, [cell(1, 1.0)])
        read(tmp_path / "store.db", "UPDATE spectune_measurement SET document = '{}'")
        with pytest.raises(StoreError, match=r"row 1 of spectune_measurement .* was damaged"):
            store.surfaces()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store.db"))
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.devices()


def test_a_store_shows_its_url(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "store.db")) as store:
        assert store.url == f"sqlite:///{tmp_path}/store.db"
        assert repr(store) == f"SqlStore('sqlite:///{tmp_path}/store.db')"


def test_two_processes_that_create_and_fill_one_store_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    command = [sys.executable, "-c", WRITER, str(file)]
    writers = [subprocess.Popen([*command, batch]) for batch in ("1", "2")]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    with open_store(str(file)) as store:
        (surface,) = store.surfaces()
    found = [(measurement.batch, measurement.tokens) for measurement in surface.measurements]
    assert found == [(batch, tokens) for batch in (1, 2) for tokens in range(1, 101)]


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_threads_that_share_one_store_lose_nothing(tmp_path: Path, kind: str) -> None:
    with open_store(str(tmp_path / "store.db") if kind == "file" else ":memory:") as store:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda tokens: store.add_measurements(SURFACE, [cell(tokens)]), range(1, 41)))
        assert tokens_in(store) == list(range(1, 41))


def test_opening_a_store_does_not_import_torch() -> None:
    code = (
        "import sys; from spectune.db import open_store; open_store('sqlite://').close(); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def tokens_in(store: Store) -> list[int]:
    (surface,) = store.surfaces()
    return [measurement.tokens for measurement in surface.measurements]


def read(file: Path, query: str) -> list[tuple[str, ...]]:
    """Run one statement beside the store, as another program would that first removes what stands in its way."""
    with sqlite3.connect(file) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def test_a_store_that_outlasts_power_cuts_flushes_every_commit(tmp_path: Path) -> None:
    with SqlStore(resolve_url(str(tmp_path / "store.db"))) as store:
        before = store._read(lambda session: session.execute(text("PRAGMA synchronous")).scalar())
        store.outlast_power_cuts()
        after = store._read(lambda session: session.execute(text("PRAGMA synchronous")).scalar())
    assert (before, after) == (1, 2)  # NORMAL, FULL
