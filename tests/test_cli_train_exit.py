"""`spectune train exit`: a target that drafts for itself, and from then on a drafter like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.errors import ModelError
from spectune.planner.inputs import SELF
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.policies import Eagle2Policy
from spectune.profiler.prompts import Prompt
from spectune.runtime.engines.drafter import drafter_form
from spectune.runtime.loader import load
from spectune.tuning.estimates.estimate import EstimateRequest, estimate
from spectune.tuning.inputs import inputs_of
from spectune.tuning.latency_profile import LatencyRequest, profile_latency
from spectune.tuning.plan import make_plan
from spectune.tuning.profile import Profile, profile
from spectune.tuning.request import Models, PlanRequest, ProfileRequest

from .tiny_family import save_model

SMALL = ("--steps", "3", "--batch", "2", "--piece", "16", "--texts", "4", "--new-tokens", "20", "--dtype", "float32")


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["-q", "train", "exit", *arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exits")
    save_model(folder / "target", layers=3, seed=0)
    save_model(folder / "other", layers=3, seed=5)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    result = typed(*given(folder), "-o", str(folder / "exit"), "--exit-layer", "1", "--width", "16", *SMALL, "--json")
    assert result.exit_code == 0, result.output
    (folder / "said.json").write_text(result.stdout)
    return folder


def given(folder: Path) -> tuple[str, ...]:
    return ("--target", str(folder / "target"), "--data", str(folder / "text.txt"))


def test_the_facts_are_those_of_the_card(place: Path) -> None:
    said, card = (json.loads((place / name).read_text()) for name in ("said.json", "exit/card.json"))
    assert said == card | {"folder": str(place / "exit")}
    assert len(card["losses"]) == 3 and (card["layers"], card["of_layers"], card["width"]) == (1, 3, 16)


def test_an_exit_layer_must_be_named(place: Path) -> None:
    result = typed(*given(place), "-o", str(place / "none"))
    assert result.exit_code == 2 and "--exit-layer" in result.stderr


def test_an_exit_behind_the_last_layer_is_refused_in_one_line(place: Path) -> None:
    result = typed(*given(place), "-o", str(place / "none"), "--exit-layer", "3", *SMALL)
    assert result.exit_code == 1 and "exits behind 1 to 2 of them, not 3" in result.stderr
    assert not (place / "none").exists()


@pytest.fixture(scope="module")
def profiled(place: Path) -> tuple[Profile, Plan]:
    request = ProfileRequest(
        models=Models(target=place / "target", drafters={"self": place / "exit"}),
        prompts=[Prompt(text=f"def f{number}(x): return {number}") for number in range(3)],
        dtype="float32", batches=(1,), max_new_tokens=8, max_prompt_tokens=8, budget_s=4.0, held_out=4, record="quick",
    )  # fmt: skip
    with open_store(str(place / "store.db")) as store:
        found = profile(request, store, lock_wait_s=60.0, progress=lambda *_: None)
        asked = PlanRequest(target=found.identities.target, device=found.device, dtype="float32", trials=2)
        return found, make_plan(asked, store)


def test_an_exit_is_profiled_and_planned_like_a_drafter_but_in_no_stack(profiled: tuple[Profile, Plan]) -> None:
    found, plan = profiled
    assert {surface.role for surface in found.drafts.values()} == {SELF}
    assert all(drafter.reads_features for drafter in inputs_of(found).drafters)
    assert [trace.prefix_exact for trace in found.traces] == [True]
    assert found.pairwise[0].models == ("target", "self")
    kinds = {sample.kind for sample in found.overhead.samples}
    assert "stack" not in kinds and "eagle2" in kinds
    assert "self" in {each.drafter for cell in plan.cells for each in cell.alternatives}


def test_a_plan_with_an_exit_decodes_what_plain_decoding_says(
    place: Path, profiled: tuple[Profile, Plan], tmp_path: Path
) -> None:
    """The plan is bent onto the exit, as no tiny target is faster with one."""
    policy = Eagle2Policy(verify_tokens=6, depth=2, top_k=2)
    cells = (
        replace(cell, policy=policy, drafter="self", run_tokens=(*range(7),), run_ms=()) for cell in profiled[1].cells
    )
    (tmp_path / "plan.json").write_text(plan_to_json(replace(profiled[1], cells=tuple(cells))))
    drafted = load(place / "target", plan=str(tmp_path / "plan.json"))
    plain = load(place / "target", plan="none", dtype="float32")
    one, other = (
        generator.generate_batch(["def main(", "return 1"], max_new_tokens=16) for generator in (drafted, plain)
    )
    assert drafted.choice.plan is not None and not drafted.choice.substitutes
    assert [text.tokens for text in one] == [text.tokens for text in other]
    assert sum(text.rounds for text in one) <= sum(text.rounds for text in other)


def test_an_exit_is_not_profiled_for_another_target(place: Path, tmp_path: Path) -> None:
    given = ("--target", str(place / "other"), "--drafter", f"self={place / 'exit'}", "--batch", "1")
    places = {"SPECTUNE_STORE": str(tmp_path / "store.db"), "SPECTUNE_CACHE": str(tmp_path / "run")}
    result = CliRunner(env=places).invoke(main, ["-q", "profile", *given])
    assert result.exit_code == 1
    assert "was trained for a target with the weights" in result.stderr and "train exit" in result.stderr


def test_an_exit_s_forwards_alone_are_timed_in_its_own_role(place: Path, tmp_path: Path) -> None:
    models = Models(target=place / "target", drafters={"self": place / "exit"})
    request = LatencyRequest(
        models=models, contexts=(8,), roles=("draft",), dtype="float32", batches=(1,), budget_s=3.0, held_out=0
    )
    with open_store(str(tmp_path / "store.db")) as store:
        found = profile_latency(request, store, lock_wait_s=60.0, progress=lambda *_: None)
    assert [surface.role for surface in found.surfaces] == [SELF]


def test_an_exit_is_not_estimated(place: Path) -> None:
    models = Models(target=place / "target", drafters={"self": place / "exit"})
    with open_store(str(place / "store.db")) as store, pytest.raises(ModelError, match="measured, not estimated"):
        estimate(EstimateRequest(models=models, device="H200"), store)


def test_an_exit_is_of_no_engine_s_form(place: Path) -> None:
    assert drafter_form(place / "exit", follows_text=True) == "unknown"
    assert drafter_form(place / "target", follows_text=True) == "model"
