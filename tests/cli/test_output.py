"""Files behind `-o`: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from spectune.errors import RequestError
from spectune.report.file import require_writable, write_whole


def test_a_written_file_holds_the_text_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("old and longer")
    write_whole(tmp_path / "plan.json", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("plan.json", "new")]


def test_a_missing_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no folder"):
        require_writable(tmp_path / "absent" / "plan.json")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="which is a folder"):
        require_writable(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RequestError, match="there is no folder"):
        write_whole(tmp_path / "file" / "plan.json", "new")
    assert (tmp_path / "file").read_text() == "kept"


def test_what_cannot_be_encoded_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "plan.json", "\ud800")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("plan.json", "old")]
