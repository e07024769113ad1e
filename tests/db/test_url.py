"""Where a store lies, and what is shown of it."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from spectune.db.url import resolve_url, shown
from spectune.errors import StoreError


def test_a_bare_path_is_an_sqlite_file(tmp_path: Path) -> None:
    assert resolve_url(str(tmp_path / "y.db")).render_as_string() == f"sqlite:///{tmp_path}/y.db"


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_url("y.db").database == resolve_url("sqlite:///y.db").database == str(tmp_path / "y.db")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_url("~/y.db").database == str(tmp_path / "y.db")


@pytest.mark.parametrize("text", [":memory:", "sqlite://", "sqlite:///:memory:"])
def test_memory_stays_memory(text: str) -> None:
    assert resolve_url(text).database in (None, ":memory:")


def test_the_variable_names_the_store_when_no_argument_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTUNE_STORE", "/from/variable.db")
    assert resolve_url().database == "/from/variable.db"


def test_an_argument_beats_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTUNE_STORE", "/from/variable.db")
    assert resolve_url("/from/argument.db").database == "/from/argument.db"


@pytest.mark.parametrize("value", [None, ""])
def test_the_default_lies_in_the_users_data_folder(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECTUNE_STORE", raising=False)
    if value is not None:
        monkeypatch.setenv("SPECTUNE_STORE", value)
    assert resolve_url().database == str(Path(platformdirs.user_data_dir("spectune", appauthor=False)) / "store.db")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@host:5432/name",
        "postgresql://host/name?user=me&password=hunter2",
        "mssql+pyodbc://?odbc_connect=DRIVER%3Dx%3BPWD%3Dhunter2",
    ],
)
def test_a_password_is_not_shown(text: str) -> None:
    url = shown(resolve_url(text))
    assert "hunter2" not in url
    assert "***" in url or "%2A%2A%2A" in url


@pytest.mark.parametrize(
    "text", ["postgresql://me:hunter2@host:port/name", "://hunter2", "postgresql://me:h/unter2@x:y"]
)
def test_an_unreadable_url_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(StoreError, match="cannot read the store URL") as refusal:
        resolve_url(text)
    assert "unter2" not in str(refusal.value)
    assert refusal.value.__cause__ is None
