"""A target that sees, from the command line: train an exit, profile, plan, run; and what is said of bad images."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapes_models
from click.testing import CliRunner, Result
from shapes import PROMPT

from spectune.cli import main
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.runtime.models.image_cache import IMAGES
from spectune.training.trainer import TrainingSettings

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import save_model

__all__ = ["timed_coarsely"]

FEW = TrainingSettings(steps=12, batch=4, sequence_tokens=1, warmup_steps=1)
TRAINED = ("--exit-layer", "2", "--steps", "6", "--batch", "4", "--texts", "6", "--new-tokens", "16")
MEASURED = ("--batch", "1", "--budget", str(BUDGET_S), "--record", "quick", "--held-out", "0", "--max-new-tokens", "12")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """A folder with a model that sees, its exit, pictures and a store in which a profile and a plan lie."""

    folder: Path
    outcomes: dict[str, Result]

    @property
    def target(self) -> Path:
        return self.folder / "target"

    @property
    def pictures(self) -> list[Path]:
        return sorted((self.folder / "exam").iterdir())

    def typed(self, *arguments: str) -> Result:
        return typed(self.folder, *arguments)

    def said(self, picture: Path, *arguments: str) -> Any:
        asked = ("--prompt", PROMPT, "--image", str(picture), "--max-new-tokens", "24", "--dtype", "float32", "--json")
        result = self.typed("run", "--target", str(self.target), *asked, *arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


def typed(folder: Path, *arguments: str) -> Result:
    places = {"SPECTUNE_STORE": str(folder / "store.db"), "SPECTUNE_CACHE": str(folder / "run")}
    return CliRunner(env=places).invoke(main, ["-q", *arguments])


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    folder = tmp_path_factory.mktemp("gallery")
    (folder / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name, count in (("PROMPTS", 8), ("PROFILE", 4), ("EXAM", 3)):
            patch.setattr(shapes_models, name, count)
        shapes_models.train_model(folder / "target", FEW, pictures=20)
        shapes_models.prepare(folder, FEW)
    target = ("--target", str(folder / "target"), "--dtype", "float32")
    data, prompts = str(folder / "prompts.jsonl"), str(folder / "profile.jsonl")
    seen = ("--drafter", f"exit2={folder / 'exit2'}", "--prompts", prompts)
    outcomes = {
        "train": typed(folder, "train", "exit", *target, "--data", data, "-o", str(folder / "exit2"), *TRAINED),
        "profile": typed(folder, "profile", *target, *seen, *MEASURED),
        "plan": typed(folder, "plan", *target, "--trials", "2", "-o", str(folder / "plan.json")),
    }
    return Gallery(folder=folder, outcomes=outcomes)


@pytest.mark.parametrize("command", ["train", "profile", "plan"])
def test_every_command_on_the_way_takes_prompts_with_images(gallery: Gallery, command: str) -> None:
    assert gallery.outcomes[command].exit_code == 0, gallery.outcomes[command].output


def bent(gallery: Gallery) -> Plan:
    """Return the stored plan with all its cells on the exit, as no model of this size is faster with one."""
    plan = plan_from_json((gallery.folder / "plan.json").read_text())
    policy = Eagle2Policy(verify_tokens=6, depth=2, top_k=2)
    cells = (
        replace(cell, policy=policy, drafter="exit2", run_tokens=(*range(7),), run_ms=(), alternatives=())
        for cell in plan.cells
    )
    return replace(plan, cells=tuple(cells))


def test_a_stored_plan_of_a_target_that_sees_is_followed_and_its_texts_are_the_target_s(gallery: Gallery) -> None:
    for picture in gallery.pictures:
        planned, plain = gallery.said(picture), gallery.said(picture, "--plan", "none")
        assert planned["plan"]["source"] == "this device" and not planned["events"]
        assert planned["tokens"] == plain["tokens"] and len(plain["tokens"]) > 4


def test_an_exit_drafts_behind_an_image_and_the_text_is_the_target_s(gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_to_json(bent(gallery)))
    for picture in gallery.pictures:
        drafted = gallery.said(picture, "--plan", str(tmp_path / "plan.json"))
        plain = gallery.said(picture, "--plan", "none")
        assert drafted["plan"]["source"] == "file" and not drafted["events"]
        assert drafted["tokens"] == plain["tokens"]
        assert drafted["rounds"] < plain["rounds"] == len(plain["tokens"]) - 1, "some of its drafts were right"


def damaged(folder: Path, name: str) -> Path:
    """Return a file that holds no picture."""
    place = folder / name
    match name:
        case "grey.npy":
            np.save(place, np.zeros((8, 8), dtype=np.uint8))
        case "objects.npy":
            np.save(place, np.array([{}], dtype=object), allow_pickle=True)
        case "cut.npy" | "text.png":
            place.write_text("no picture")
    return place


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("grey.npy", "(8, 8)"),
        ("objects.npy", "cannot read an image"),
        ("cut.npy", "cannot read an image"),
        ("text.png", "cannot read an image"),
        ("missing.png", "cannot read an image"),
    ],
)
@pytest.mark.parametrize("command", ["run", "train", "profile"])
def test_a_file_that_is_no_image_is_named(gallery: Gallery, tmp_path: Path, command: str, name: str, told: str) -> None:
    picture, target = damaged(tmp_path, name), ("--target", str(gallery.target), "--dtype", "float32")
    lines = [json.dumps({"prompt": PROMPT, "image": name})] * 2
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    data = str(tmp_path / "data.jsonl")
    result = {
        "run": lambda: gallery.typed("run", *target, "--plan", "none", "--prompt", PROMPT, "--image", str(picture)),
        "train": lambda: gallery.typed("train", "exit", *target, "--data", data, "-o", str(tmp_path / "new"), *TRAINED),
        "profile": lambda: gallery.typed("profile", *target, "--prompts", data, *MEASURED),
    }[command]()
    assert result.exit_code == 1
    assert told in result.stderr and name in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_a_target_of_text_alone_is_shown_no_image(gallery: Gallery, tmp_path: Path) -> None:
    save_model(tmp_path / "text", layers=1, seed=1)
    asked = ("--target", str(tmp_path / "text"), "--plan", "none", "--prompt", "a", "--image", str(gallery.pictures[0]))
    result = gallery.typed("run", *asked, "--dtype", "float32")
    assert result.exit_code == 1 and "the target sees none" in result.stderr


def test_placeholders_and_images_must_be_as_many(gallery: Gallery) -> None:
    picture = ("--image", str(gallery.pictures[0]))
    target = ("--target", str(gallery.target), "--dtype", "float32", "--plan", "none")
    result = gallery.typed("run", *target, "--prompt", PROMPT + PROMPT, *picture)
    assert result.exit_code == 1 and "2 placeholders and 1 images" in result.stderr
    result = gallery.typed("run", *target, "--prompt", PROMPT)
    assert result.exit_code == 1 and "1 placeholders and 0 images" in result.stderr


def test_more_images_than_a_target_keeps_are_refused_with_both_numbers(gallery: Gallery, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for place in range(IMAGES + 1):
        np.save(tmp_path / f"{place}.npy", rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
    lines = (json.dumps({"prompt": PROMPT, "image": f"{place}.npy"}) for place in range(IMAGES + 1))
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    given = ("--target", str(gallery.target), "--dtype", "float32", "--prompts", str(tmp_path / "data.jsonl"))
    result = gallery.typed("profile", *given, *MEASURED)
    assert result.exit_code == 1
    assert f"{IMAGES + 1} images" in result.stderr and f"keeps {IMAGES} at once" in result.stderr
