"""`spectune train`: a drafter of each kind from a target and text, and from then on a drafter like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.engines.drafter import drafter_form
from spectune.errors import ModelError
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.stack import JOINT
from spectune.profiler.prompts import Prompt
from spectune.profiler.records.role import BLOCK, HEAD, SELF
from spectune.runtime.drafters.stack import named_stack
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.load import load
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.loading import load_model
from spectune.tuning.estimates.estimate import EstimateRequest, estimate
from spectune.tuning.inputs import inputs_of
from spectune.tuning.latency_profile import LatencyRequest, profile_latency
from spectune.tuning.plan import make_plan
from spectune.tuning.profile import Profile, profile
from spectune.tuning.request import Models, PlanRequest, ProfileRequest

from ..support.coarse_design import BUDGET_S, timed_coarsely
from ..support.tiny_family import save_model

__all__ = ["timed_coarsely"]

LAYERS = 6
SMALL = ("--steps", "3", "--batch", "2", "--texts", "4", "--new-tokens", "20", "--dtype", "float32")
POLICY = Eagle2Policy(verify_tokens=6, depth=2, top_k=2)


@dataclass(frozen=True)
class Kind:
    """How a drafter of one kind is trained here, in which role it is timed, and what its card says besides losses."""

    options: tuple[str, ...]
    role: str
    card: Mapping[str, Any]


KINDS = {
    "eagle": Kind(("--piece", "16", "--test-steps", "3"), HEAD, {"form": "eagle3"}),
    "medusa": Kind(("--piece", "5", "--heads", "3"), BLOCK, {"kind": "medusa", "depth": 3}),
    "ctc": Kind(
        ("--piece", "5", "--frames", "5", "--labels", "3", "--intermediate", "16"), BLOCK, {"kind": "ctc", "depth": 3}
    ),
    "specformer": Kind(
        ("--piece", "5", "--places", "3", "--width", "12", "--intermediate", "16"),
        BLOCK,
        {"kind": "specformer", "depth": 3},
    ),
    "exit": Kind(
        ("--piece", "16", "--exit-layer", "2", "--width", "16"), SELF, {"layers": 2, "of_layers": LAYERS, "width": 16}
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def trained(folder: Path, kind: str, *options: str) -> Result:
    given = ("--target", str(folder / "target"), "--data", str(folder / "text.txt"))
    return CliRunner().invoke(main, ["-q", "train", kind, *given, *SMALL, *options])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two targets, and drafters of the first one with what their training said."""
    folder = tmp_path_factory.mktemp("trained")
    save_model(folder / "target", layers=LAYERS, seed=0)
    save_model(folder / "other", layers=LAYERS, seed=5)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    for kind, made in KINDS.items():
        result = trained(folder, kind, *made.options, "-o", str(folder / kind), "--json")
        assert result.exit_code == 0, result.output
        (folder / f"{kind}.json").write_text(result.stdout)
    return folder


def models_of(place: Path, *kinds: str) -> Models:
    return Models(target=place / "target", drafters={kind: place / kind for kind in kinds})


@every_kind
def test_the_facts_are_those_of_the_card(place: Path, kind: str) -> None:
    said, card = (json.loads((place / name).read_text()) for name in (f"{kind}.json", f"{kind}/card.json"))
    assert said == card | {"folder": str(place / kind)}
    assert len(card["losses"]) == 3 and card.items() >= KINDS[kind].card.items()


def test_a_missing_file_is_named(place: Path) -> None:
    result = trained(place, "eagle", "--data", "nowhere.txt", "-o", str(place / "none"))
    assert result.exit_code == 1 and "nowhere.txt" in result.stderr


def test_an_exit_layer_must_be_named(place: Path) -> None:
    result = trained(place, "exit", "-o", str(place / "none"))
    assert result.exit_code == 2 and "--exit-layer" in result.stderr


def test_an_exit_behind_the_last_layer_is_refused_in_one_line(place: Path) -> None:
    result = trained(place, "exit", "-o", str(place / "none"), "--exit-layer", str(LAYERS))
    assert result.exit_code == 1 and f"exits behind 1 to {LAYERS - 1} of them, not {LAYERS}" in result.stderr
    assert not (place / "none").exists()


@pytest.fixture(scope="module")
def profiled(place: Path) -> tuple[Profile, Plan]:
    request = ProfileRequest(
        models=models_of(place, *KINDS),
        prompts=[Prompt(text=f"def f{number}(x): return {number}") for number in range(3)],
        dtype="float32",
        batches=(1,),
        max_new_tokens=8,
        max_prompt_tokens=8,
        budget_s=BUDGET_S,
        held_out=4,
        record="quick",
    )
    with open_store(str(place / "store.db")) as store:
        found = profile(request, store, lock_wait_s=60.0, progress=lambda *_: None)
        asked = PlanRequest(target=found.identities.target, device=found.device, dtype="float32", trials=2)
        return found, make_plan(asked, store)


def test_they_are_profiled_and_planned_like_drafters_but_in_no_stack(profiled: tuple[Profile, Plan]) -> None:
    found, plan = profiled
    assert {name: surface.role for name, surface in found.drafts.items()} == {n: k.role for n, k in KINDS.items()}
    assert all(drafter.reads_features for drafter in inputs_of(found).drafters)
    exact = {trace.drafter_name: trace.prefix_exact for trace in found.traces}
    assert exact == {name: kind.role == SELF for name, kind in KINDS.items()}
    assert found.pairwise[0].models == ("target", *KINDS)
    kinds = {sample.kind for sample in found.overhead.samples}
    assert "stack" not in kinds and "eagle2" in kinds
    assert {name for name, _ in plan.drafters} == set(KINDS)
    assert {each.drafter for cell in plan.cells for each in cell.alternatives} >= set(KINDS)


class Rounds(list[StepOutput]):
    """Every round that was run."""

    def note(self, done: StepOutput) -> None:
        self.append(done)


@every_kind
def test_a_plan_with_one_decodes_what_plain_decoding_says(
    place: Path, profiled: tuple[Profile, Plan], tmp_path: Path, kind: str
) -> None:
    """The plan is bent onto each drafter in turn, as no tiny target is faster with one."""
    cells = (
        replace(cell, policy=POLICY, drafter=kind, run_tokens=(*range(7),), run_ms=()) for cell in profiled[1].cells
    )
    (tmp_path / "plan.json").write_text(plan_to_json(replace(profiled[1], cells=tuple(cells))))
    drafted = load(place / "target", plan=str(tmp_path / "plan.json"))
    plain = load(place / "target", plan="none", dtype="float32")
    drafted.observer = rounds = Rounds()
    one, other = (
        generator.generate_batch(["def main(", "return 1"], max_new_tokens=16) for generator in (drafted, plain)
    )
    assert drafted.choice.plan is not None and not drafted.choice.substitutes
    assert [text.tokens for text in one] == [text.tokens for text in other]
    assert all(done.widths and done.verify_tokens > 1 and not done.faults for done in rounds)


@pytest.mark.parametrize("kind", ["eagle", "exit"])
def test_that_of_another_target_is_refused(place: Path, tmp_path: Path, kind: str) -> None:
    given = ("--target", str(place / "other"), "--drafter", f"it={place / kind}", "--batch", "1")
    places = {"SPECTUNE_STORE": str(tmp_path / "store.db"), "SPECTUNE_CACHE": str(tmp_path / "run")}
    result = CliRunner(env=places).invoke(main, ["-q", "profile", *given])
    assert result.exit_code == 1
    assert "was trained for a target with the weights" in result.stderr and f"train {kind}" in result.stderr


def test_their_forwards_alone_are_timed_in_their_own_roles(place: Path, tmp_path: Path) -> None:
    request = LatencyRequest(
        models=models_of(place, *KINDS), contexts=(8,), roles=("draft",), dtype="float32", batches=(1,),
        budget_s=BUDGET_S, held_out=0,
    )  # fmt: skip
    with open_store(str(tmp_path / "store.db")) as store:
        found = profile_latency(request, store, lock_wait_s=60.0, progress=lambda *_: None)
    assert [surface.role for surface in found.surfaces] == [kind.role for kind in KINDS.values()]


@every_kind
def test_a_stack_with_one_is_refused(place: Path, kind: str) -> None:
    target = load_model(str(place / "target"), dtype="float32")
    models = {kind: load_drafter(str(place / kind), target, dtype="float32")}
    with pytest.raises(ModelError, match=f"{kind} reads hidden states"):
        named_stack(JOINT.join((kind, "lookup")), models, slots=1, capacity=9)


@every_kind
def test_none_is_estimated(place: Path, kind: str) -> None:
    with open_store(str(place / "store.db")) as store, pytest.raises(ModelError, match="measured, not estimated"):
        estimate(EstimateRequest(models=models_of(place, kind), device="H200"), store)


def test_an_exit_is_of_no_engine_s_form(place: Path) -> None:
    assert drafter_form(place / "exit", follows_text=True) == "unknown"
    assert drafter_form(place / "target", follows_text=True) == "model"
