"""`spectune token` as people type it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db.jobs.access import Tokens

from ..support.fresh_store import fresh_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fresh_store(tmp_path).close()
    return tmp_path


def typed(folder: Path, *arguments: str) -> Result:
    return CliRunner(env={"SPECTUNE_STORE": str(folder / "store.db")}).invoke(main, ("token", *arguments))


def listed(folder: Path) -> Any:
    return json.loads(typed(folder, "list", "--json").stdout)


def test_a_token_is_printed_once_alone_on_stdout_and_listed_without_it(folder: Path) -> None:
    made = typed(folder, "create", "ci", "--scope", "write", "--expires", "90d")
    token = made.stdout.strip()
    assert token.startswith("spt_") and made.exit_code == 0
    (fact,) = listed(folder)
    assert (fact["name"], fact["scope"], fact["revoked"]) == ("ci", "write", None) and fact["expires"]
    assert token not in typed(folder, "list").output and "hash" not in fact


def test_a_revoked_token_no_longer_holds(folder: Path) -> None:
    typed(folder, "create", "ci")
    assert typed(folder, "revoke", "ci").exit_code == 0
    assert listed(folder)[0]["revoked"]
    with fresh_store(folder, "other.db") as store:
        assert not Tokens(store).are_there()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("create", "a b"), 1, "no name for a token"),
        (("create", "ci", "--expires", "soon"), 2, "no time"),
        (("create", "ci", "--expires", "2001-01-01"), 1, "is over"),
        (("create", "ci", "--scope", "root"), 2, "root"),
        (("revoke", "nobody"), 1, "no token"),
        (("list", "--store", "https://planner.example"), 1, "not through a service"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, arguments: tuple[str, ...], code: int, told: str) -> None:
    result = typed(folder, *arguments)
    assert result.exit_code == code and told in result.output
    assert listed(folder) == []
