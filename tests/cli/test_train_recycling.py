"""`spectune train recycling`: a folder without weights, and from then on a drafter like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from spectune.cli import main
from spectune.db import open_store
from spectune.engines.drafter import drafter_form
from spectune.errors import ModelError, TrainingError
from spectune.planner.inputs import BLOCK, PlanInputs
from spectune.planner.plans.document import plan_from_json, plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.stack import JOINT
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.profiler.records.surface import LatencySurface
from spectune.runtime.drafters.stack import named_stack
from spectune.runtime.load import load
from spectune.runtime.models.drafter import load_drafter, require_drafter_of
from spectune.runtime.models.drafter_shapes import RecyclingShape, is_recycling, recycling_shape
from spectune.runtime.models.formats import draft_role
from spectune.runtime.models.loading import load_model
from spectune.runtime.models.recycling import RecyclingHead
from spectune.training.recycling import RecyclingRequest
from spectune.tuning.estimates.estimate import EstimateRequest, estimate
from spectune.tuning.inputs import inputs_from_store
from spectune.tuning.plan import solve_plan
from spectune.tuning.request import Models, PlanRequest

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import save_model

__all__ = ["timed_coarsely"]

PROMPTS = ["def main(", "return 1"]
SEARCHING = {"lookup", "suffix", "suffix-tree", "cacheback", "hybrid"}  # kinds of policies that search the text


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["-q", *arguments])


def made(folder: Path, *more: str, target: str = "target", name: str = "recycling") -> Result:
    given = ("--target", str(folder / target), "--data", str(folder / "text.txt"), "-o", str(folder / name))
    return typed("train", "recycling", *given, "--new-tokens", "30", "--dtype", "float32", *more)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recycled")
    save_model(folder / "target", layers=2, seed=0)
    save_model(folder / "other", layers=2, seed=5)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    result = made(folder, "--successors", "5", "--json")
    assert result.exit_code == 0, result.output
    (folder / "said.json").write_text(result.stdout)
    return folder


def test_the_facts_are_those_of_the_card(place: Path) -> None:
    said, card = (json.loads((place / name).read_text()) for name in ("said.json", "recycling/card.json"))
    assert said == card | {"folder": str(place / "recycling")}
    assert card["successors"] == 5 and card["rounds"] > 10 and 1.0 <= card["tokens_per_round"] <= 7.0
    assert f"{card['tokens_per_round']:.2f} tokens a round" in (place / "recycling" / "card.md").read_text()


def test_people_are_told_the_acceptance(place: Path) -> None:
    result = made(place, name="told")
    assert result.exit_code == 0 and "8 successors" in result.output and "depth" in result.output


def test_the_folder_is_a_drafter_of_its_target(place: Path) -> None:
    folder = place / "recycling"
    target = load_model(str(place / "target"), dtype="float32")
    drafter = load_drafter(str(folder), target, dtype="float32")
    assert isinstance(drafter, RecyclingHead) and drafter.successors == 5
    assert is_recycling(folder) and not is_recycling(place / "target") and draft_role(folder) == "block"
    require_drafter_of(folder, identify(place / "target"))
    assert drafter_form(folder, follows_text=False) == "unknown"  # no engine runs it


def test_that_of_another_target_is_refused(place: Path) -> None:
    with pytest.raises(ModelError, match="was trained for a target with the weights"):
        require_drafter_of(place / "recycling", identify(place / "other"))
    given = ("--target", str(place / "other"), "--drafter", f"it={place / 'recycling'}")
    result = typed("profile", *given, "--store", str(place / "refused.db"), "--dry-run")
    assert result.exit_code == 1 and "spectune train recycling --target other" in result.output


def test_folders_of_other_targets_and_sizes_are_other_drafters(place: Path) -> None:
    """Surfaces and traces are found again by the hash of what stands in the place of weights."""
    assert made(place, "--successors", "4", name="fewer").exit_code == 0
    assert made(place, "--successors", "5", name="again").exit_code == 0
    assert made(place, "--successors", "5", target="other", name="foreign").exit_code == 0
    key = {name: identify(place / name).key for name in ("recycling", "fewer", "again", "foreign")}
    assert key["recycling"] == key["again"] and len(set(key.values())) == 3
    tensors = load_file(place / "recycling" / "model.safetensors")
    assert bytes(tensors["target"].tolist()).hex() == identify(place / "target").weights_hash


def test_folders_and_requests_that_keep_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"spectune": {"kind": "recycling", "target": ""}}))
    assert is_recycling(tmp_path)
    with pytest.raises(ModelError, match="recycles no tokens"):
        recycling_shape(tmp_path)
    with pytest.raises(ModelError, match="1 successor or more"):
        RecyclingShape(successors=0, target="")
    with pytest.raises(TrainingError, match="give one file or more"):
        RecyclingRequest(target=tmp_path, data=())
    with pytest.raises(TrainingError, match="successors must be at least 1, got 0"):
        RecyclingRequest(target=tmp_path, data=(tmp_path,), successors=0)


@pytest.fixture(scope="module")
def planned(place: Path) -> tuple[PlanInputs, Plan]:
    """Profile and plan as people type it, and return what the plan is made of, too."""
    prompts = [json.dumps({"text": f"def f{number}(x): return {number}"}) for number in range(3)]
    (place / "prompts.jsonl").write_text("\n".join(prompts))
    target, store = ("--target", str(place / "target"), "--dtype", "float32"), ("--store", str(place / "store.db"))
    given = ("--drafter", f"recycling={place / 'recycling'}", "--prompts", str(place / "prompts.jsonl"), "--batch", "1")
    small = ("--max-new-tokens", "40", "--max-prompt-tokens", "8", "--held-out", "4", "--record", "quick")
    steps = (
        ("profile", *target, *given, *small, "--budget", str(BUDGET_S), *store),
        ("plan", *target, "--trials", "2", "-o", str(place / "plan.json"), *store),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECTUNE_CACHE", str(place / "cache"))  # another test may hold the device
        for words in steps:
            result = typed(*words)
            assert result.exit_code == 0, result.output
    request = PlanRequest(target=identify(place / "target"), device=detect("cpu"), dtype="float32", trials=2)
    with open_store(str(place / "store.db")) as opened:
        return inputs_from_store(request, opened), plan_from_json((place / "plan.json").read_text())


def test_it_is_profiled_and_planned_like_a_block_drafter(planned: tuple[PlanInputs, Plan]) -> None:
    inputs, plan = planned
    (drafter,) = inputs.drafters
    assert drafter.surface.role == BLOCK and drafter.reads_features and not drafter.trace.prefix_exact
    assert inputs.pairwise is not None and inputs.pairwise.models == ("target", "recycling")
    assert "stack" not in {sample.kind for sample in inputs.overhead.samples}
    priced = {(each.drafter, each.policy.kind) for cell in plan.cells for each in cell.alternatives}
    assert {("recycling", kind) for kind in ("chain", "static", "eagle2")} <= priced


def test_a_plan_chooses_it_where_it_is_the_fastest(planned: tuple[PlanInputs, Plan]) -> None:
    """At costs that are given: a forward of the target is dear, a row is cheap, and searching the text takes long."""
    inputs = planned[0]
    drafter = replace(inputs.drafters[0], surface=costing(inputs.drafters[0].surface, 0.01))
    samples = (
        replace(sample, host_ms=(90.0 if sample.kind in SEARCHING else 0.01,)) for sample in inputs.overhead.samples
    )
    overhead = replace(inputs.overhead, samples=tuple(samples))
    given = replace(inputs, verify=costing(inputs.verify, 10.0), drafters=(drafter,), overhead=overhead)
    request = PlanRequest(target=inputs.target, device=inputs.device, dtype="float32", trials=0)
    assert {cell.drafter for cell in solve_plan(given, request).cells} == {"recycling"}


def costing(surface: LatencySurface, ms: float) -> LatencySurface:
    """Return a surface whose every forward takes so long."""
    measured = (replace(m, repeats_ms=(ms,) * 3, drift=(), disturbed=()) for m in surface.measurements)
    return replace(surface, measurements=tuple(measured))


def test_a_plan_with_it_decodes_what_plain_decoding_says(
    place: Path, planned: tuple[PlanInputs, Plan], tmp_path: Path
) -> None:
    policy = Eagle2Policy(verify_tokens=8, depth=3, top_k=2)
    cells = (
        replace(cell, policy=policy, drafter="recycling", run_tokens=(*range(9),), run_ms=())
        for cell in planned[1].cells
    )
    (tmp_path / "plan.json").write_text(plan_to_json(replace(planned[1], cells=tuple(cells))))
    drafted = load(place / "target", plan=str(tmp_path / "plan.json"))
    plain = load(place / "target", plan="none", dtype="float32")
    one, other = (generator.generate_batch(PROMPTS, max_new_tokens=40) for generator in (drafted, plain))
    assert drafted.choice.plan is not None and not drafted.choice.substitutes
    assert [text.tokens for text in one] == [text.tokens for text in other]
    assert sum(text.rounds for text in one) < sum(text.rounds for text in other)


@pytest.mark.usefixtures("planned")
def test_the_command_line_runs_the_plan(place: Path) -> None:
    """Whatever the plan chooses here, the text is the target's own."""
    asked = ("run", "--target", str(place / "target"), "--prompt", "def main(", "--max-new-tokens", "16")
    with_plan = typed(*asked, "--store", str(place / "store.db"))
    plainly = typed(*asked, "--plan", "none", "--dtype", "float32")
    assert with_plan.exit_code == plainly.exit_code == 0, with_plan.output + plainly.output
    assert with_plan.stdout == plainly.stdout


def test_it_is_in_no_stack_and_is_not_estimated(place: Path) -> None:
    target = load_model(str(place / "target"), dtype="float32")
    models = {"recycling": load_drafter(str(place / "recycling"), target, dtype="float32")}
    with pytest.raises(ModelError, match="recycling reads hidden states"):
        named_stack(JOINT.join(("recycling", "lookup")), models, slots=1, capacity=9)
    family = Models(target=place / "target", drafters={"recycling": place / "recycling"})
    with open_store(str(place / "store.db")) as store, pytest.raises(ModelError, match="measured, not estimated"):
        estimate(EstimateRequest(models=family, device="H200"), store)
