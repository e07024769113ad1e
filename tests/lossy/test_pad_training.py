"""`spectune train pad` on tiny models: a folder with a card, the same twice, resumed, and refused where it must be."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from spectune.cli import main
from spectune.errors import ModelError, RequestError, TrainingError
from spectune.profiler.identity import identify
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.pivots import is_pivots, load_pivots, pivot_shape, require_pivots_of
from spectune.training.pad import train_pad
from spectune.training.pad_labels import harvest
from spectune.training.pad_request import Exercise, PadCard, usual_reads
from spectune.training.trainer import Checkpoint

from ..support.pad_family import HIDDEN, PROMPTS, PadFamily, pad_family

FILES = ["card.json", "card.md", "config.json", "model.safetensors"]


def silent(what: str, share: float) -> None:
    """Say nothing."""


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> PadFamily:
    return pad_family(tmp_path_factory.mktemp("pad"))


@pytest.fixture(scope="module")
def card(family: PadFamily) -> PadCard:
    return train_pad(family.request(), family.folder / "trained", progress=silent)


def test_the_folder_holds_a_classifier_of_its_target(family: PadFamily, card: PadCard) -> None:
    folder = family.folder / "trained"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert is_pivots(folder) and not is_pivots(family.target)
    shape = pivot_shape(folder)
    assert (shape.reads, shape.hidden, shape.width, shape.threshold) == (usual_reads(2), HIDDEN, 16, card.threshold)
    require_pivots_of(folder, identify(family.target))
    classifier = load_pivots(folder, load_model(str(family.target), dtype="float32"))
    chances = classifier.chances(torch.randn(5, HIDDEN + 2))
    assert len(chances) == 5 and all(0.0 <= chance <= 1.0 for chance in chances)


def test_the_card_comes_back_and_is_told_to_people(family: PadFamily, card: PadCard) -> None:
    written = json.loads((family.folder / "trained" / "card.json").read_text())
    assert written == json.loads(json.dumps(asdict(card)))
    assert 0 < card.pivots < card.candidates and 0 < card.held_out < card.candidates
    assert len(card.losses) == 40 and np.mean(card.losses[-10:]) < 0.9 * np.mean(card.losses[:10])
    page = (family.folder / "trained" / "card.md").read_text()
    assert card.judgement in page and f"{card.candidates:,} drafted tokens" in page
    assert (card.auroc is None) == (card.held_out_pivots in (0, card.held_out))


def test_training_twice_gives_the_same_classifier(family: PadFamily, card: PadCard) -> None:
    again = train_pad(family.request(), family.folder / "again", progress=silent)
    assert replace(again, seconds=card.seconds) == card
    assert identify(family.folder / "again").key == identify(family.folder / "trained").key


@pytest.mark.parametrize("stopped_at", ["trying out the drafter's tokens", "training the classifier"])
def test_a_stopped_run_goes_on_to_the_same_classifier(
    family: PadFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: str
) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (2,))
    monkeypatch.setattr("spectune.training.pad.TOGETHER", 3)  # several files of labels

    def stop(what: str, share: float) -> None:
        if what == stopped_at and share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_pad(family.request(), tmp_path / "one", progress=stop)
    assert list((tmp_path / "one" / ".partial").glob("labels-*.npz"))
    steps: list[float] = []
    done = train_pad(
        family.request(), tmp_path / "one",
        progress=lambda what, share: steps.append(share) if what == "training the classifier" else None,
    )  # fmt: skip
    assert len(steps) == (40 if stopped_at.startswith("trying") else 16)
    whole = train_pad(family.request(), tmp_path / "whole", progress=silent)
    assert replace(done, seconds=whole.seconds) == whole
    assert identify(tmp_path / "one").key == identify(tmp_path / "whole").key


def test_another_training_begins_on_the_labels_of_the_first_once_that_is_forgotten(
    family: PadFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (1,))

    def stop(what: str, share: float) -> None:
        if what == "training the classifier":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_pad(family.request(), tmp_path, progress=stop)
    with pytest.raises(TrainingError, match="another unfinished training"):
        train_pad(family.request(width=8), tmp_path, progress=silent)
    monkeypatch.setattr("spectune.training.pad._models", None)  # nothing is left to label
    assert train_pad(family.request(width=8, recall=0.5), tmp_path, fresh=True, progress=silent).recall == 0.5


def test_labels_of_another_drafter_are_not_gone_on_with(family: PadFamily, tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        if what == "training the classifier":
            raise KeyboardInterrupt

    small = tmp_path / "small"
    shutil.copytree(family.drafter, small)
    with pytest.raises(KeyboardInterrupt):
        train_pad(family.request(drafter=small), tmp_path / "mine", progress=stop)
    shutil.copy(family.target / "model.safetensors", small)
    with pytest.raises(TrainingError, match="began with other drafter; put back what it began with"):
        train_pad(family.request(drafter=small), tmp_path / "mine", progress=silent)


def test_problems_that_outgrow_the_target_s_positions_are_refused(family: PadFamily, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has 512; lower --max-new-tokens or leave out long problems"):
        train_pad(family.request(max_new_tokens=512), tmp_path / "one", progress=silent)
    assert not (tmp_path / "one").exists()


def test_labels_are_kept_problem_by_problem_and_told_as_they_come(family: PadFamily, tmp_path: Path) -> None:
    told: list[tuple[float, int]] = []

    def note(what: str, share: float) -> None:
        if what.startswith("trying"):
            told.append((share, len(list((tmp_path / ".partial").glob("labels-*")))))

    train_pad(family.request(exercises=family.exercises * 2), tmp_path, progress=note)
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and len(set(shares)) > 2 and {files for _, files in told} == {0, 1}


def test_problems_are_decoded_many_at_once_however_few_labels_are_a_file(
    family: PadFamily, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def counted(*models: Any, **said: Any) -> Any:
        decoded.append(len(models[2]))
        return harvest(*models, **said)

    monkeypatch.setattr("spectune.training.pad.harvest", counted)
    monkeypatch.setattr("spectune.training.pad.TOGETHER", 2)
    monkeypatch.setattr("spectune.training.pad.HARVESTED", 5)
    train_pad(family.request(), tmp_path, progress=silent)
    assert decoded == [5] * (len(decoded) - 1) + decoded[-1:] and sum(decoded) == len(family.exercises)


def test_problems_that_teach_nothing_are_refused(family: PadFamily, tmp_path: Path) -> None:
    hopeless = tuple(replace(each, answer="nothing of the kind") for each in family.exercises)
    with pytest.raises(TrainingError, match="0 are pivots, so that there is nothing to tell apart"):
        train_pad(family.request(exercises=hopeless), tmp_path / "one", progress=silent)
    with pytest.raises(TrainingError, match="rejected none of the drafter's tokens"):
        train_pad(family.request(floor=1.0), tmp_path / "two", progress=silent)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"exercises": ()}, "whose answers are known"),
        ({"exercises": (Exercise(prompt=(1,), answer=" "),) * 2}, '"prompt" and "answer"'),
        ({"max_new_tokens": 1}, "max_new_tokens >= 2"),
        ({"least_share": 0.0}, "least_share"),
        ({"floor": 1.5}, "floor"),
        ({"held_out": 1.0}, "held_out"),
        ({"recall": 0.0}, "recall"),
    ],
)
def test_impossible_requests_are_refused(family: PadFamily, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TrainingError, match=complaint):
        family.request(**changes)


@pytest.mark.parametrize(("layers", "reads"), [(1, 1), (4, 2), (14, 7), (28, 21), (36, 29)])
def test_the_usual_state_is_the_published_eighth_last_or_the_middle(layers: int, reads: int) -> None:
    assert usual_reads(layers) == reads


# --- folders that are not a classifier of this target


def test_a_classifier_of_another_target_is_refused(family: PadFamily, card: PadCard) -> None:
    other = replace(identify(family.target), weights_hash="f" * 64)
    with pytest.raises(ModelError, match="trained for a target with the weights"):
        require_pivots_of(family.folder / "trained", other)


def test_folders_that_hold_no_classifier_are_refused(family: PadFamily, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no pivot classifier; train one with"):
        pivot_shape(family.target)
    said = {"kind": "pad", "reads": 1, "hidden": HIDDEN, "width": 16, "target": "f" * 64, "floor": 0.0}
    (tmp_path / "config.json").write_text(json.dumps({"spectune": said}))
    with pytest.raises(ModelError, match="describes no pivot classifier"):
        pivot_shape(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"spectune": {**said, "threshold": 2.0}}))
    with pytest.raises(ModelError, match="are chances"):
        pivot_shape(tmp_path)


def test_weights_that_do_not_fit_are_refused(family: PadFamily, card: PadCard, tmp_path: Path) -> None:
    target = load_model(str(family.target), dtype="float32")
    written = json.loads((family.folder / "trained" / "config.json").read_text())
    for change, complaint in (
        ({"hidden": 31}, "reads states of 31 numbers, and the target's have 32"),
        ({"width": 8}, "its config.json and this target need"),
        ({"reads": 9}, "after (9,) layers"),
    ):
        said = {"spectune": written["spectune"] | change}
        (tmp_path / "config.json").write_text(json.dumps(said))
        (tmp_path / "model.safetensors").write_bytes((family.folder / "trained" / "model.safetensors").read_bytes())
        with pytest.raises(ModelError) as raised:
            load_pivots(tmp_path, target)
        assert complaint in str(raised.value)


# --- the command line


def typed(*words: object) -> Any:
    return CliRunner().invoke(main, ["-q", "train", "pad", *map(str, words)])


def test_the_command_s_facts_are_those_of_the_card(family: PadFamily, tmp_path: Path) -> None:
    pairs = zip(PROMPTS, family.exercises, strict=True)
    lines = [{"prompt": prompt, "answer": each.answer} for prompt, each in pairs]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = typed(
        "--target", family.target, "--drafter", family.drafter, "--data", tmp_path / "problems.jsonl",
        "-o", tmp_path / "mine", "--rollouts", 1, "--rollout-temperature", 0, "--floor", 0, "--width", 16,
        "--steps", 5, "--batch", 4, "--max-new-tokens", 12, "--device", "cpu", "--dtype", "float32", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    said, card = json.loads(done.stdout), json.loads((tmp_path / "mine" / "card.json").read_text())
    assert said == card | {"folder": str(tmp_path / "mine")} and len(card["losses"]) == 5


def test_problems_with_images_are_refused(family: PadFamily, tmp_path: Path) -> None:
    lines = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "see", "image": "one.npy", "answer": "2"}'
    (tmp_path / "seen.jsonl").write_text(lines)
    given = ("--target", family.target, "--drafter", family.drafter, "-o", tmp_path / "mine")
    done = typed(*given, "--data", tmp_path / "seen.jsonl")
    assert done.exit_code == 1 and "seen.jsonl has an image" in done.output


def test_a_file_without_answers_is_refused(family: PadFamily, tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2="}')
    given = ("--target", family.target, "--drafter", family.drafter, "-o", tmp_path / "mine")
    done = typed(*given, "--data", tmp_path / "text.jsonl")
    assert done.exit_code == 1 and "does not tell every answer" in done.output
