"""From a profile to a text on a pretended GPU: what a machine with a GPU runs, and no time that means anything."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from spectune.db import open_store
from spectune.planner.plans.document import plan_to_json
from spectune.planner.plans.plan import Plan
from spectune.planner.strategies.chain import ChainPolicy
from spectune.profiler.records.role import CAPTURED
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.load import load
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.measuring.decoding import Family, Traffic
from spectune.tuning.plan import make_plan
from spectune.tuning.profile import Profile, profile
from spectune.tuning.request import PlanRequest, ProfileRequest

from ..pretended.cuda import pretended_gpu
from ..pretended.device import PLACE, entered
from ..support import fake_nvml
from ..support.coarse_design import timed_coarsely
from ..support.tiny_family import quick_request
from ..support.tiny_heads import save_head
from ..support.tiny_models import tiny_llama
from ..support.tiny_recycling import save_recycling

__all__ = ["timed_coarsely"]

PROMPTS = ["def f(x)", "return"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("on-gpu")


def headed(request: ProfileRequest, place: Path) -> ProfileRequest:
    """Return the request with a head beside the drafter, and what is drafted as it comes beside both."""
    target = LlamaForCausalLM.from_pretrained(request.models.target)
    head = save_head(place / "head", "eagle3", target, (0, 1, 2))
    drafters = {
        **request.models.drafters,
        "head": head,
        "recycled": save_recycling(place / "recycled", place / "target"),
    }
    return replace(request, models=replace(request.models, drafters=drafters))


@pytest.fixture(scope="module")
def made(place: Path) -> tuple[Profile, Plan]:
    with pytest.MonkeyPatch.context() as patch:
        fake_nvml.install(patch, fake_nvml.Gpu(letter="A"))
        with pretended_gpu(), open_store(str(place / "store.db")) as store:
            request = replace(headed(quick_request(place), place), device="cuda:0", regime="auto")
            found = profile(request, store, lock_wait_s=60.0, progress=lambda *_: None)
            asked = PlanRequest(target=found.identities.target, device=found.device, dtype="float32", trials=2)
            return found, make_plan(asked, store)


def test_forwards_are_timed_as_they_are_captured(made: tuple[Profile, Plan]) -> None:
    found, plan = made
    drafts = dict(found.drafts)
    eager, surfaces = drafts.pop("recycled"), [found.verify, *drafts.values()]
    assert {surface.regime for surface in surfaces} == {plan.regime} == {CAPTURED} and eager.regime == "eager"
    assert all(one.failure is None and min(one.repeats_ms) > 0 for each in surfaces for one in each.measurements)
    assert found.device.kind == plan.device.kind == "cuda" and found.readings


def test_of_rounds_is_told_which_ran_ahead_of_the_host(made: tuple[Profile, Plan]) -> None:
    ways = {(sample.kind, sample.is_ahead) for sample in made[0].overhead.samples if sample.role == "draft"}
    ahead = {"plain", "lookup", "suffix", "chain", "static", "eagle2", "hybrid"}
    assert {kind for kind, is_ahead in ways if is_ahead} >= ahead
    waiting = {"confident-chain", "talon", "opt-tree", "cast", "stack", "cacheback"}
    assert {kind for kind, is_ahead in ways if not is_ahead} >= waiting
    assert not {kind for kind, is_ahead in ways if is_ahead} & {kind for kind, is_ahead in ways if not is_ahead}


@pytest.mark.parametrize(
    ("drafter", "kinds"),
    [
        ("small", {"chain", "eagle2", "cast", "hybrid"}),
        ("head", {"chain", "eagle2", "cast", "hybrid"}),
        ("recycled", {"chain", "eagle2"}),
    ],
)
def test_every_cell_is_priced_with_the_drafter(made: tuple[Profile, Plan], drafter: str, kinds: set[str]) -> None:
    found = [{each.policy.kind for each in cell.alternatives if each.drafter == drafter} for cell in made[1].cells]
    assert found and all(kinds <= of_cell for of_cell in found)


@pytest.mark.parametrize("drafter", [None, "small", "head", "recycled"])
def test_a_session_emits_what_plain_decoding_on_the_cpu_does(
    place: Path, made: tuple[Profile, Plan], drafter: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan as it is, and with each cell bent onto a drafter, as no tiny target is surely faster with one."""
    plan, chain = made[1], ChainPolicy(length=3)
    if drafter is not None:
        bent = partial(replace, policy=chain, drafter=drafter, run_tokens=tuple(range(5)), run_ms=())
        plan = replace(plan, cells=tuple(map(bent, plan.cells)))
    (tmp_path / "plan.json").write_text(plan_to_json(plan))
    fake_nvml.install(monkeypatch, fake_nvml.Gpu(letter="A"))
    with pretended_gpu():
        planned = load(place / "target", plan=str(tmp_path / "plan.json"), device="cuda:0")
        texts = planned.generate_batch(PROMPTS, max_new_tokens=20)
        assert planned.choice.plan is not None and not planned.choice.substitutes
    plain = load(place / "target", plan="none", dtype="float32", device="cpu")
    assert [text.tokens for text in texts] == [t.tokens for t in plain.generate_batch(PROMPTS, max_new_tokens=20)]


def test_a_round_is_timed_when_the_device_has_read_the_prompts_before_it() -> None:
    """Else reading would be the time of the round that is timed next, and a drafter reads what plain rounds do not."""
    requests = [Request(prompt=(3, 4, 5), max_new_tokens=6)] * 4
    setup = StepConfig(policy=ChainPolicy(length=2), drafter="small")
    with pretended_gpu():
        placed: list[Any] = [tiny_llama(layers=1, seed=seed) for seed in (1, 2)]  # Any: torch types no model's `to`
        target, small = (LeanModel(model.to(PLACE)) for model in placed)
        family = Family(target=target, drafters={"small": small})
        decoder = family.decoder(always(setup), names=["small"], batch=2, capacity=60)
        texts, traffic = Traffic(decoder, requests, keeps_full=True), entered().traffic
        joined = 0
        while True:
            before = texts.joined
            if not texts.refill():
                break
            if texts.joined > before:
                joined += 1
                assert traffic.done == traffic.given
            decoder.step()
        assert joined > 1
