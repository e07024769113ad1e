"""Where a trained drafter is kept: over no other model, claimed by nothing that cannot run, and a full disk told."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NoReturn

import arithmetic_models
import demo_models
import pytest
import shapes_models
import torch
from click.testing import CliRunner
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from spectune.cli import main
from spectune.errors import ModelError, SpectuneError, TrainingError
from spectune.profiler.identity import identify
from spectune.training.block import BlockRequest
from spectune.training.eagle import EagleRequest
from spectune.training.exit import ExitRequest
from spectune.training.own_text import OwnTextSettings
from spectune.training.recycling import RecyclingRequest, make_recycling
from spectune.training.run import train_drafter
from spectune.training.run_folder import claim, require_own
from spectune.training.trainer import Checkpoint, TrainingSettings

from ..support.tiny_family import save_model

KEPT = TemporaryDirectory()  # of the target; gone with the process
OWN = OwnTextSettings(texts=4, prompt_tokens=4, new_tokens=20)
SETTINGS = TrainingSettings(steps=1, batch=2, sequence_tokens=16, warmup_steps=1)
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@cache
def target() -> Path:
    save_model(Path(KEPT.name) / "target", layers=4, seed=0)
    (Path(KEPT.name) / "text.txt").write_text("def main(): return 1\n" * 40)
    return Path(KEPT.name) / "target"


def train(kind: str, folder: Path, **changes: Any) -> object:
    """Train a drafter of a kind for a step."""
    given: dict[str, Any] = {
        "target": target(),
        "data": (target().parent / "text.txt",),
        "own": OWN,
        "dtype": "float32",
    }

    def quiet(what: str, share: float) -> None:
        pass

    if kind == "recycling":
        return make_recycling(RecyclingRequest(**given | changes), folder, progress=quiet)
    given["settings"] = SETTINGS
    if kind == "eagle":
        return train_drafter(EagleRequest(**given | {"form": "eagle"} | changes), folder, progress=quiet)
    if kind == "medusa":
        return train_drafter(BlockRequest(**given | {"kind": "medusa", "depth": 2} | changes), folder, progress=quiet)
    return train_drafter(ExitRequest(**given | {"exit_layer": 2} | changes), folder, progress=quiet)


KINDS = ("eagle", "medusa", "exit", "recycling")


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_is_not_overwritten(kind: str) -> None:
    before = identify(target())
    with pytest.raises(TrainingError, match="a model that the drafter is trained with; name another folder"):
        train(kind, target().parent / "." / "target")
    assert identify(target()) == before and not (target() / ".partial").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_from_elsewhere_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(TrainingError, match="holds a model that was not trained here; name another folder with -o"):
        train(kind, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model-00001-of-00002.safetensors"]


def test_the_drafter_that_pivots_are_labelled_with_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text('{"target_hash": "0"}')
    with pytest.raises(TrainingError, match="is trained with"):
        require_own(tmp_path, target(), tmp_path)


def test_a_card_that_is_not_ours_makes_no_model_ours(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "card.json").write_text("[]")
    with pytest.raises(TrainingError, match="was not trained here"):
        require_own(tmp_path)


def test_a_drafter_trained_here_is_trained_again_in_its_folder(tmp_path: Path) -> None:
    for more in (1, 2):
        train("recycling", tmp_path, successors=more)
    assert json.loads((tmp_path / "card.json").read_text())["successors"] == 2
    (tmp_path / "card.json").unlink()  # stopped before its card was written
    train("recycling", tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_read_claims_no_folder(tmp_path: Path, kind: str) -> None:
    with pytest.raises(SpectuneError, match="cannot read"):
        train(kind, tmp_path / "new", data=(tmp_path / "typo.txt",))
    with pytest.raises(TrainingError, match="too few to draw prompts"):
        train(kind, tmp_path / "new", own=replace(OWN, prompt_tokens=10_000))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"cannot train into .*free space there or name another"):
        train(kind, tmp_path / "file" / "new")


def test_a_maker_of_models_writes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    for name in ("new", "new"):
        claim(tmp_path / name, "me")
    (tmp_path / "new" / "model.safetensors").touch()
    claim(tmp_path / "new", "me")
    with pytest.raises(
        TrainingError, match=r"new holds files that you might write over, and no note.*name a new folder"
    ):
        claim(tmp_path / "new", "you")


def test_a_folder_that_an_older_version_wrote_is_gone_on_with_once_a_note_says_so(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    with pytest.raises(TrainingError, match=r"or write 'me' into .*\.maker if they are its own"):
        claim(tmp_path, "me")
    (tmp_path / ".maker").write_text("me")
    claim(tmp_path, "me")


def test_what_begins_with_a_dot_takes_no_folder(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").touch()
    claim(tmp_path, "me")
    assert (tmp_path / ".maker").read_text() == "me\n"


def test_makers_of_models_leave_the_user_s_own_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "mine.safetensors")
    with pytest.raises(TrainingError, match=r"benchmarks/demo_models\.py might write over"):
        demo_models.main(tmp_path)
    monkeypatch.setattr("sys.argv", ["it", "-o", str(tmp_path)])
    for maker in (arithmetic_models, shapes_models):
        with pytest.raises(SystemExit, match="2"):
            maker.main()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.safetensors"]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise FULL

    monkeypatch.setattr(Path, "write_text", refuse)
    asked = ("--target", str(target()), "--data", str(target().parent / "text.txt"), "-o", str(tmp_path / "new"))
    result = CliRunner().invoke(main, ["-q", "train", "medusa", *asked])
    assert result.exit_code == 1 and result.output.count("\n") == 1
    assert "No space left on device" in result.output


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_does_not_do_is_told_with_what_takes_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("spectune.training.run.chain_acceptance", refuse)
    options = "--new-tokens, or choose" if kind == "recycling" else "--batch, --piece"
    with pytest.raises(TrainingError, match=rf"no room for this training \(.*2.00 GiB.*\); lower {options}"):
        train(kind, tmp_path / "new")


def test_weights_that_the_disk_refuses_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise SafetensorError("I/O error: no space left")

    monkeypatch.setattr("spectune.training.cards.save_file", refuse)
    with pytest.raises(TrainingError, match=r"cannot train into .*no space left"):
        train("recycling", tmp_path / "new")


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_states_that_the_disk_has_no_room_for_are_refused_before_they_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("spectune.training.states.shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(TrainingError, match=r"states along its texts take .* GB free; lower --texts or --new-tokens"):
        train(kind, tmp_path / "new")
    assert not list(tmp_path.glob("**/states-*"))


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no disk that is always full")
def test_a_checkpoint_that_the_disk_refuses_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "run.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        Checkpoint(tmp_path / "run.pt", every=1).keep(0.5, nn.Linear(200, 200), ())


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_target_that_sees_is_refused_before_it_writes(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "seeing"
    place.mkdir()
    save_file({"a": torch.zeros(2)}, place / "model.safetensors")
    text = {"model_type": "llama", "vocab_size": 24}
    said = {"model_type": "llava", "text_config": text, "image_seq_length": 4, "image_token_index": 23}
    (place / "config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=r"is a model that sees.*spectune train exit"):
        train(kind, tmp_path / "new", target=place)
    assert not (tmp_path / "new").exists()
