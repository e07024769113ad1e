"""`spectune train medusa`, `ctc`, `specformer`: drafters from a target and text, then drafters like any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spectune.cli import main
from spectune.db import open_store
from spectune.errors import ModelError
from spectune.planner.inputs import BLOCK
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.policies import Eagle2Policy
from spectune.planner.policies.stack import JOINT
from spectune.profiler.prompts import Prompt
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

SMALL = ("--steps", "3", "--batch", "2", "--piece", "5", "--texts", "4", "--new-tokens", "20", "--dtype", "float32")
OWN = {
    "medusa": ("--heads", "3"),
    "ctc": ("--frames", "5", "--labels", "3", "--intermediate", "16"),
    "specformer": ("--places", "3", "--width", "12", "--intermediate", "16"),
}


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["-q", "train", *arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    save_model(folder / "target", layers=2, seed=0)
    (folder / "text.txt").write_text("def main(): return 1\n" * 40)
    given = ("--target", str(folder / "target"), "--data", str(folder / "text.txt"))
    for kind, own in OWN.items():
        result = typed(kind, *given, "-o", str(folder / kind), *SMALL, *own, "--json")
        assert result.exit_code == 0, result.output
        (folder / f"{kind}.json").write_text(result.stdout)
    return folder


@pytest.mark.parametrize("kind", OWN)
def test_the_facts_are_those_of_the_card(place: Path, kind: str) -> None:
    said, card = (json.loads((place / name).read_text()) for name in (f"{kind}.json", f"{kind}/card.json"))
    assert said == card | {"folder": str(place / kind)}
    assert len(card["losses"]) == 3 and card["kind"] == kind and card["depth"] == 3


@pytest.fixture(scope="module")
def profiled(place: Path) -> tuple[Profile, Plan]:
    """Profile and plan; the plan is bent onto each drafter in turn, as no tiny target is faster with one."""
    request = ProfileRequest(
        models=Models(target=place / "target", drafters={kind: place / kind for kind in OWN}),
        prompts=[Prompt(text=f"def f{number}(x): return {number}") for number in range(3)],
        dtype="float32", batches=(1,), max_new_tokens=8, max_prompt_tokens=8, budget_s=4.0, held_out=4, record="quick",
    )  # fmt: skip
    with open_store(str(place / "store.db")) as store:
        found = profile(request, store, lock_wait_s=60.0, progress=lambda *_: None)
        asked = PlanRequest(target=found.identities.target, device=found.device, dtype="float32", trials=2)
        return found, make_plan(asked, store)


def test_blocks_are_profiled_and_planned_like_drafters_but_in_no_stack(profiled: tuple[Profile, Plan]) -> None:
    found, plan = profiled
    assert {surface.role for surface in found.drafts.values()} == {BLOCK}
    assert all(drafter.reads_features for drafter in inputs_of(found).drafters)
    assert [trace.prefix_exact for trace in found.traces] == [False] * len(OWN)
    assert found.pairwise[0].models == ("target", *OWN)
    assert "stack" not in {sample.kind for sample in found.overhead.samples}
    priced = {each.drafter for cell in plan.cells for each in cell.alternatives}
    assert priced >= set(OWN)


@pytest.mark.parametrize("kind", OWN)
def test_a_plan_with_a_block_decodes_what_plain_decoding_says(
    place: Path, profiled: tuple[Profile, Plan], tmp_path: Path, kind: str
) -> None:
    policy = Eagle2Policy(verify_tokens=6, depth=2, top_k=2)
    cells = (
        replace(cell, policy=policy, drafter=kind, run_tokens=(*range(7),), run_ms=()) for cell in profiled[1].cells
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


def test_a_block_s_forwards_alone_are_timed_in_its_own_role(place: Path, tmp_path: Path) -> None:
    models = Models(target=place / "target", drafters={"ctc": place / "ctc"})
    request = LatencyRequest(
        models=models, contexts=(8,), roles=("draft",), dtype="float32", batches=(1,), budget_s=3.0, held_out=0
    )
    with open_store(str(tmp_path / "store.db")) as store:
        found = profile_latency(request, store, lock_wait_s=60.0, progress=lambda *_: None)
    assert [surface.role for surface in found.surfaces] == [BLOCK]


def test_a_stack_with_a_block_is_refused(place: Path) -> None:
    target = load_model(str(place / "target"), dtype="float32")
    models = {"medusa": load_drafter(str(place / "medusa"), target, dtype="float32")}
    with pytest.raises(ModelError, match="medusa reads hidden states"):
        named_stack(JOINT.join(("medusa", "lookup")), models, slots=1, capacity=9)


def test_a_block_is_not_estimated(place: Path) -> None:
    models = Models(target=place / "target", drafters={"medusa": place / "medusa"})
    with open_store(str(place / "store.db")) as store, pytest.raises(ModelError, match="measured, not estimated"):
        estimate(EstimateRequest(models=models, device="H200"), store)
