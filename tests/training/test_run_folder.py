"""The folder of an unfinished run: what was written goes with what it follows from, a training with what was asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spectune.errors import TrainingError
from spectune.runtime.batch.images import Image
from spectune.runtime.batch.sequence import Request
from spectune.training.block import BlockRequest
from spectune.training.own_text import OwnTextSettings
from spectune.training.run_folder import digest_of, run_folder
from spectune.training.trainer import TrainingSettings

from ..support.synthetic import TARGET

SOURCES = {"target": "0" * 64, "text.txt": "a", "size of texts": {"texts": 4}}


@pytest.fixture
def request_(tmp_path: Path) -> BlockRequest:
    return BlockRequest(
        target=tmp_path / "target",
        data=(tmp_path / "text.txt",),
        kind="medusa",
        depth=2,
        settings=TrainingSettings(steps=1, batch=2, sequence_tokens=16, warmup_steps=1),
        own=OwnTextSettings(texts=4),
    )


def begun(request: BlockRequest, tmp_path: Path, *, fresh: bool = False, text: str = "a") -> Path:
    return run_folder(request, TARGET, tmp_path / "drafter", SOURCES | {"text.txt": text}, fresh=fresh)


def write(request: BlockRequest, tmp_path: Path) -> None:
    """Begin a run that has written its texts and taken some steps."""
    for name in ("own-0.npy", "run.pt"):
        (begun(request, tmp_path) / name).write_text("written")


def kept(partial: Path) -> list[str]:
    return sorted(path.name for path in partial.iterdir() if path.suffix != ".json")


def test_the_same_request_on_the_same_sources_goes_on(request_: BlockRequest, tmp_path: Path) -> None:
    write(request_, tmp_path)
    assert kept(begun(request_, tmp_path)) == ["own-0.npy", "run.pt"]


def test_a_run_whose_sources_changed_is_not_gone_on_with_unless_it_is_forgotten(
    request_: BlockRequest, tmp_path: Path
) -> None:
    write(request_, tmp_path)
    with pytest.raises(TrainingError, match=r"with other text\.txt; put back what .* or forget it with --fresh"):
        begun(request_, tmp_path, text="b")
    assert kept(begun(request_, tmp_path)) == ["own-0.npy", "run.pt"]  # put back
    assert kept(begun(request_, tmp_path, fresh=True, text="b")) == []


def test_another_training_begins_on_the_texts_of_the_first_once_that_is_forgotten(
    request_: BlockRequest, tmp_path: Path
) -> None:
    write(request_, tmp_path)
    other = replace(request_, settings=replace(request_.settings, batch=1))
    with pytest.raises(TrainingError, match="another unfinished training; finish it, or forget it with --fresh"):
        begun(other, tmp_path)
    assert kept(begun(other, tmp_path, fresh=True)) == ["own-0.npy"]


def test_a_training_goes_on_wherever_its_text_lies(request_: BlockRequest, tmp_path: Path) -> None:
    write(request_, tmp_path)
    note = tmp_path / "drafter" / ".partial" / "sources.json"
    note.write_text(json.dumps(SOURCES | {"old/name.txt": "hash"}))  # as older versions wrote it
    moved = replace(request_, data=(tmp_path / "moved.txt",), device="cuda:1")
    assert kept(begun(moved, tmp_path)) == ["own-0.npy", "run.pt"]
    note.write_text(json.dumps(SOURCES | {"old/name.txt": "hash"}))
    assert kept(begun(moved, tmp_path, fresh=True)) == ["own-0.npy"]


def test_a_training_that_has_not_begun_is_changed_without_a_word(request_: BlockRequest, tmp_path: Path) -> None:
    (begun(request_, tmp_path) / "own-0.npy").write_text("written")
    other = replace(request_, kind="ctc", frames=4)
    assert kept(begun(other, tmp_path)) == ["own-0.npy"]
    (begun(other, tmp_path) / "run.pt").write_text("begun")
    assert kept(begun(other, tmp_path)) == ["own-0.npy", "run.pt"]


@pytest.mark.parametrize("note", [None, '{"target":'])
def test_a_run_of_which_nothing_is_known_is_not_gone_on_with(
    request_: BlockRequest, tmp_path: Path, note: str | None
) -> None:
    write(request_, tmp_path)
    partial = tmp_path / "drafter" / ".partial"
    (partial / "sources.json").unlink()
    if note is not None:
        (partial / "sources.json").write_text(note)
    with pytest.raises(TrainingError, match="that an older version began; forget it with --fresh"):
        begun(request_, tmp_path)
    assert kept(begun(request_, tmp_path, fresh=True)) == []


def test_notes_are_json(request_: BlockRequest, tmp_path: Path) -> None:
    assert json.loads((begun(request_, tmp_path) / "sources.json").read_text()) == SOURCES


def test_whatever_a_text_follows_from_is_in_the_hash_of_what_was_asked() -> None:
    image = Image(np.zeros((2, 2, 3), dtype=np.uint8))
    asked = Request(prompt=(1, 2), max_new_tokens=3, stop=frozenset((0, 5)), images=(image,))
    changes: list[dict[str, Any]] = [
        {"prompt": (1, 3)}, {"max_new_tokens": 4}, {"stop": frozenset((0,))}, {"seed": 1}, {"temperature": 0.8},
        {"images": ()}, {"images": (Image(np.ones((2, 2, 3), dtype=np.uint8)),)},
    ]  # fmt: skip
    found = {digest_of([asked]), digest_of([asked, asked]), *(digest_of([replace(asked, **one)]) for one in changes)}
    assert len(found) == 2 + len(changes) and digest_of([replace(asked)]) in found
