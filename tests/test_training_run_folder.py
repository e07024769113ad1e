"""The folder of an unfinished run: gone on with by the same request on the same data only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spectune.errors import TrainingError
from spectune.training.block import BlockRequest
from spectune.training.own_text import OwnTextSettings
from spectune.training.run_folder import run_folder
from spectune.training.settings import TrainingSettings

from .synthetic import TARGET


@pytest.fixture
def request_(tmp_path: Path) -> BlockRequest:
    (tmp_path / "text.txt").write_text("def main(): return 1\n")
    return BlockRequest(
        target=tmp_path / "target",
        data=(tmp_path / "text.txt",),
        kind="medusa",
        depth=2,
        settings=TrainingSettings(steps=1, batch=2, sequence_tokens=16, warmup_steps=1),
        own=OwnTextSettings(texts=4),
    )


def begun(request: BlockRequest, tmp_path: Path, *, fresh: bool = False) -> Path:
    return run_folder(request, TARGET, tmp_path / "drafter", fresh=fresh)


def test_the_same_request_on_the_same_data_goes_on(request_: BlockRequest, tmp_path: Path) -> None:
    (begun(request_, tmp_path) / "texts").write_text("written")
    assert (begun(request_, tmp_path) / "texts").read_text() == "written"


def test_a_run_whose_data_changed_is_not_gone_on_with_unless_it_is_forgotten(
    request_: BlockRequest, tmp_path: Path
) -> None:
    (begun(request_, tmp_path) / "texts").write_text("written")
    (tmp_path / "text.txt").write_text("def main(): return 2\n")
    with pytest.raises(TrainingError, match=r"of other data: .*text\.txt changed since it began; .*--fresh"):
        begun(request_, tmp_path)
    assert not (begun(request_, tmp_path, fresh=True) / "texts").exists()


def test_a_run_goes_on_once_its_data_is_put_back(request_: BlockRequest, tmp_path: Path) -> None:
    (begun(request_, tmp_path) / "texts").write_text("written")
    first = (tmp_path / "text.txt").read_text()
    (tmp_path / "text.txt").write_text("other")
    with pytest.raises(TrainingError, match="of other data"):
        begun(request_, tmp_path)
    (tmp_path / "text.txt").write_text(first)
    assert (begun(request_, tmp_path) / "texts").read_text() == "written"


def test_a_run_of_a_version_that_kept_no_hashes_goes_on_and_keeps_them(request_: BlockRequest, tmp_path: Path) -> None:
    note = begun(request_, tmp_path) / "request.json"
    written = json.loads(note.read_text())
    del written["data_sha256"]
    note.write_text(json.dumps(written, sort_keys=True))
    begun(request_, tmp_path)
    assert list(json.loads(note.read_text())["data_sha256"]) == [str(tmp_path / "text.txt")]


def test_a_run_whose_request_was_written_in_part_is_another(request_: BlockRequest, tmp_path: Path) -> None:
    (begun(request_, tmp_path) / "request.json").write_text('{"kind":')
    with pytest.raises(TrainingError, match="another unfinished run"):
        begun(request_, tmp_path)
