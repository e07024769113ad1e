"""`spectune train eagle`: a head from a target and text, and from then on a drafter like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.errors import ModelError
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.policies import ChainPolicy
from spectune.planner.policies.stack import JOINT
from spectune.profiler.prompts import Prompt
from spectune.profiler.records.role import HEAD
from spectune.runtime.drafters.stack import named_stack
from spectune.runtime.loader import load
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.loading import load_model
from spectune.tuning.estimates.estimate import EstimateRequest, estimate
from spectune.tuning.inputs import inputs_of
from spectune.tuning.latency_profile import LatencyRequest, profile_latency
from spectune.tuning.plan import make_plan
from spectune.tuning.profile import Profile, profile
from spectune.tuning.request import Models, PlanRequest, ProfileRequest

from .tiny_family import save_model

SMALL = ("--steps", "3", "--batch", "2", "--piece", "16", "--texts", "4", "--new-tokens", "20", "--test-steps", "3")


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["-q", "train", "eagle", *arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    save_model(folder / "target", layers=6, seed=0)
    save_model(folder / "other", layers=6, seed=5)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    given = ("--target", str(folder / "target"), "--data", str(folder / "text.txt"), "-o", str(folder / "head"))
    result = typed(*given, *SMALL, "--dtype", "float32", "--json")
    assert result.exit_code == 0, result.output
    (folder / "said.json").write_text(result.stdout)
    return folder


def test_the_facts_are_those_of_the_card(place: Path) -> None:
    said, card = (json.loads((place / name).read_text()) for name in ("said.json", "head/card.json"))
    assert said == card | {"folder": str(place / "head")}
    assert len(card["losses"]) == 3 and card["form"] == "eagle3"


def test_a_missing_file_is_named(place: Path) -> None:
    result = typed("--target", str(place / "target"), "--data", "nowhere.txt", "-o", str(place / "none"))
    assert result.exit_code == 1 and "nowhere.txt" in result.stderr


def profile_request(place: Path) -> ProfileRequest:
    return ProfileRequest(
        models=Models(target=place / "target", drafters={"head": place / "head"}),
        prompts=[Prompt(text=f"def f{number}(x): return {number}") for number in range(3)],
        dtype="float32", batches=(1,), max_new_tokens=8, max_prompt_tokens=8, budget_s=4.0, held_out=4, record="quick",
    )  # fmt: skip


@pytest.fixture(scope="module")
def profiled(place: Path) -> tuple[Profile, Plan]:
    """Profile and plan; the plan is bent onto the head, as no tiny target is faster with one."""
    with open_store(str(place / "store.db")) as store:
        found = profile(profile_request(place), store, lock_wait_s=60.0, progress=lambda *_: None)
        request = PlanRequest(target=found.identities.target, device=found.device, dtype="float32", trials=2)
        plan = make_plan(request, store)
    bent = (
        replace(cell, policy=ChainPolicy(length=3), drafter="head", run_tokens=(0, 1, 2, 3, 4), run_ms=())
        for cell in plan.cells
    )
    return found, replace(plan, cells=tuple(bent))


def test_a_head_is_profiled_and_planned_like_a_drafter_but_in_no_stack(profiled: tuple[Profile, Plan]) -> None:
    found, plan = profiled
    inputs = inputs_of(found)
    assert found.drafts["head"].role == HEAD and inputs.drafters[0].reads_features
    assert found.traces[0].drafter_name == "head" and found.pairwise[0].models == ("target", "head")
    assert "stack" not in {sample.kind for sample in found.overhead.samples}
    assert [name for name, _ in plan.drafters] == ["head"]


def test_a_plan_with_a_head_decodes_what_plain_decoding_says(
    place: Path, profiled: tuple[Profile, Plan], tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_text(plan_to_json(profiled[1]))
    target = place / "target"
    with_head = load(target, plan=str(tmp_path / "plan.json"))
    plain = load(target, plan="none", dtype="float32")
    prompts = ["def main(", "return 1"]
    one, other = (generator.generate_batch(prompts, max_new_tokens=16) for generator in (with_head, plain))
    assert with_head.choice.plan is not None and not with_head.choice.substitutes
    assert [text.tokens for text in one] == [text.tokens for text in other]
    assert sum(text.rounds for text in one) <= sum(text.rounds for text in other)


def test_a_head_of_another_target_is_refused(place: Path, tmp_path: Path) -> None:
    given = ("--target", str(place / "other"), "--drafter", f"head={place / 'head'}", "--batch", "1")
    places = {"SPECTUNE_STORE": str(tmp_path / "store.db"), "SPECTUNE_CACHE": str(tmp_path / "run")}
    result = CliRunner(env=places).invoke(main, ["-q", "profile", *given])
    assert result.exit_code == 1
    assert "was trained for a target with the weights" in result.stderr and "train eagle" in result.stderr


def test_a_head_s_forwards_alone_are_timed_in_its_own_role(place: Path, tmp_path: Path) -> None:
    models = Models(target=place / "target", drafters={"head": place / "head"})
    request = LatencyRequest(
        models=models, contexts=(8,), roles=("draft",), dtype="float32", batches=(1,), budget_s=3.0, held_out=0
    )
    with open_store(str(tmp_path / "store.db")) as store:
        found = profile_latency(request, store, lock_wait_s=60.0, progress=lambda *_: None)
    assert [surface.role for surface in found.surfaces] == [HEAD]


def test_a_stack_with_a_head_is_refused(place: Path) -> None:
    models = {"head": load_drafter(str(place / "head"), load_model(str(place / "target"), dtype="float32"), dtype="")}
    with pytest.raises(ModelError, match="head reads hidden states"):
        named_stack("head+lookup".replace("+", JOINT), models, slots=1, capacity=9)


def test_a_head_is_not_estimated(place: Path) -> None:
    models = Models(target=place / "target", drafters={"head": place / "head"})
    with open_store(str(place / "store.db")) as store, pytest.raises(ModelError, match="measured, not estimated"):
        estimate(EstimateRequest(models=models, device="H200"), store)
