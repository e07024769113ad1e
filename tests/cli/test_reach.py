"""Models that end early, or cannot be computed: said by name, before anybody waits for a measurement."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

import spectune
from spectune import load
from spectune.cli import main
from spectune.errors import RequestError

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import save_model

__all__ = ["timed_coarsely"]

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [5.0, 6.0, 7.0, 8.0],
}
WHY = "(of the 512 that it names: behind its original length LongRoPE turns every token by other angles"
REACH = "small has 64 positions and the target 512: from a context of 64 tokens on its drafts no longer count"


def saying(folder: Path, **said: Any) -> Path:
    """Return a saved model whose config.json says more."""
    config = save_model(folder, layers=1, seed=1) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **said}))
    return folder


def told(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def dry_run(target: Path, small: Path, *more: str) -> Result:
    asked = ["profile", "--target", str(target), "--drafter", f"small={small}", "--device", "cpu", "--dry-run"]
    return told(*asked, "--dtype", "float32", *more)


def doctor(tmp_path: Path, target: Path, *more: str) -> Result:
    asked = ["doctor", "--no-measure", "--json", "--store", str(tmp_path / "store.db"), "--target", str(target)]
    return told(*asked, *more)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return save_model(tmp_path / "target", layers=2, seed=0)


def test_a_profile_says_from_which_context_a_draft_model_no_longer_counts(tmp_path: Path, target: Path) -> None:
    done = dry_run(target, saying(tmp_path / "small", max_position_embeddings=64))
    assert done.exit_code == 0 and REACH in done.output


def test_nothing_is_said_of_a_draft_model_that_reaches_as_far_as_its_target(tmp_path: Path, target: Path) -> None:
    done = dry_run(target, saying(tmp_path / "small"))
    assert done.exit_code == 0 and "no longer count" not in done.output


def test_a_plan_says_from_which_context_a_draft_model_no_longer_counts(tmp_path: Path, target: Path) -> None:
    small, store = saying(tmp_path / "small", max_position_embeddings=64), ["--store", str(tmp_path / "store.db")]
    quick = ["--batch", "1", "--budget", str(BUDGET_S), "--held-out", "4", "--record", "quick", "--max-new-tokens", "8"]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"def f{n}(x): return {n}"}) + "\n" for n in range(3)))
    asked = ["profile", "--target", str(target), "--drafter", f"small={small}", "--device", "cpu", *quick, *store]
    profiled = told(*asked, "--dtype", "float32", "--prompts", str(prompts))
    assert profiled.exit_code == 0 and REACH in profiled.output, profiled.output
    done = told("plan", "--target", str(target), "--device", "cpu", "--dtype", "float32", "--trials", "2", *store)
    assert f"note: {REACH}" in done.output, done.output


def test_a_dry_run_names_longrope_where_texts_may_not_grow_to_all_positions(tmp_path: Path) -> None:
    target = saying(tmp_path / "target", rope_parameters=LONGROPE)
    done = dry_run(target, save_model(tmp_path / "small", layers=1, seed=1), "--context", "40")
    assert done.exit_code == 1 and f"the model has 32 positions {WHY}" in done.output


def test_a_text_beyond_the_original_length_of_longrope_is_refused_with_the_reason(tmp_path: Path) -> None:
    generator = load(saying(tmp_path / "target", rope_parameters=LONGROPE), "cpu", plan="none", dtype="float32")
    with pytest.raises(RequestError) as caught:
        generator.generate("def main", max_new_tokens=100)
    assert f"the model has 32 {WHY}" in str(caught.value)
    session = generator.session(slots=1)
    with pytest.raises(RequestError) as caught:
        session.submit("def main", max_new_tokens=100)
    assert f"there is room for 32 {WHY}" in str(caught.value)


def as_float8(folder: Path) -> Path:
    """Return a saved model with a matrix in float8."""
    file, place = folder / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    stored = load_file(file)
    save_file(stored | {place: stored[place].to(torch.float8_e4m3fn)}, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("which", ["target", "small"])
def test_a_dry_run_and_doctor_refuse_what_cannot_be_computed(tmp_path: Path, target: Path, which: str) -> None:
    small = save_model(tmp_path / "small", layers=1, seed=1)
    as_float8(tmp_path / which)
    done = dry_run(target, small)
    assert done.exit_code == 1 and "up_proj.weight as F8_E4M3" in done.output
    found = doctor(tmp_path, target, "--drafter", f"small={small}")
    broken = {
        each["name"]: each["seen"] for each in json.loads(found.stdout)["findings"] if each["verdict"] == "broken"
    }
    name = "target" if which == "target" else "drafter small"
    cause = set() if which == "target" else {"drafter small: numbers"}
    assert found.exit_code == 1 and broken.keys() == {name} | cause and "as F8_E4M3" in broken[name]


@pytest.mark.parametrize(
    ("said", "verdict", "seen"),
    [({}, "note", "head, sound by itself"), ({"norm_before_fc": True}, "broken", "says norm_before_fc: true in its")],
)
@pytest.mark.parametrize("given", [(), ("--target", "broken")])
def test_doctor_says_of_a_head_without_its_target_what_its_files_tell(
    tmp_path: Path, said: dict[str, bool], verdict: str, seen: str, given: tuple[str, ...]
) -> None:
    head = tmp_path / "head"
    shutil.copytree(Path(spectune.__file__).parent / "demo" / "models" / "eagle3", head)
    (head / "config.json").write_text(json.dumps({**json.loads((head / "config.json").read_text()), **said}))
    as_float8(save_model(tmp_path / "broken", layers=1, seed=0))
    target = [str(tmp_path / each) if each == "broken" else each for each in given]
    store = str(tmp_path / "store.db")
    asked = ["doctor", "--no-measure", "--json", "--store", store, *target, "--drafter", f"x={head}"]
    found = {each["name"]: each for each in json.loads(told(*asked).stdout)["findings"]}
    assert found["drafter x"]["verdict"] == verdict and seen in found["drafter x"]["seen"]
    assert ("target" in found) == bool(given)


def test_run_refuses_what_cannot_be_computed(tmp_path: Path, target: Path) -> None:
    done = told("run", "--target", str(as_float8(target)), "--device", "cpu", "--plan", "none", "--prompt", "def")
    assert done.exit_code == 1 and "as F8_E4M3" in done.output


def test_doctor_says_of_sound_models_that_they_can_be_computed(tmp_path: Path, target: Path) -> None:
    small = saying(tmp_path / "small", max_position_embeddings=64)
    found = json.loads(doctor(tmp_path, target, "--drafter", f"small={small}").stdout)
    seen = [
        (each["verdict"], each["seen"])
        for each in found["findings"]
        if each["name"] in ("target", "drafter small", "drafter small: positions")
    ]
    assert seen == [("ok", "512 positions, can be computed"), ("ok", "draft, can be computed"), ("note", REACH)]
