"""`spectune report`: one file, or one line that says what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db.sql.sql_store import SqlStore
from spectune.db.url import resolve_url

from ..support.drawn_pages import parsed
from ..support.site_store import NASTY_DEVICE, add_plan, nasty_plan


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("report") / "store.db")
    with SqlStore(resolve_url(path)) as store:
        store.add_device(NASTY_DEVICE)
        add_plan(store, nasty_plan(2.5))
    return path


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", *arguments])


def test_it_writes_one_whole_file_and_names_it(tmp_path: Path, url: str) -> None:
    file = tmp_path / "report.html"
    result = typed("-o", str(file), "--store", url)
    assert (result.exit_code, result.stderr) == (0, f"written to {file}\n")
    page = parsed(file.read_text())
    assert page.is_whole
    assert [each.attributes["id"] for each in page.all("article")][:2] == ["overview", "plans-1"]


def test_a_report_of_one_plan_begins_with_it(tmp_path: Path, url: str) -> None:
    file = tmp_path / "plan.html"
    assert typed("-o", str(file), "--store", url, "--plan", "1").exit_code == 0
    assert parsed(file.read_text()).all("article")[0].attributes["id"] == "plans-1"


@pytest.mark.parametrize(("options", "part"), [(["--plan", "7"], "there is no plan 7"), ([], "is a folder")])
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    tmp_path: Path, url: str, options: list[str], part: str
) -> None:
    file = tmp_path / "report.html" if options else tmp_path
    result = typed("-o", str(file), "--store", url, *options)
    assert result.exit_code == 1
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
