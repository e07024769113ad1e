"""Plans of a temperature: our own drafters draw with the target's noise, which no engine's drafters do."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from spectune.engines.export import Exported, export_plan
from spectune.engines.rates import rates_of_plan
from spectune.engines.setting import DrafterForm, Setting
from spectune.engines.table import ENGINES
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.lookup import LookupPolicy
from spectune.planner.strategies.plain import PlainPolicy

from ..support.engine_policies import cell_with, drafter_of, engine_drafter
from ..support.priced_cells import plan_with

CHAIN = ChainPolicy(length=3)
DOUBTING = ConfidentChainPolicy(length=8, confidence=0.4)
TREE = Eagle2Policy(verify_tokens=8, depth=4, top_k=4)
COPIES = {  # lookups that the engines which draft greedily carry without a remark of their own
    "vllm": LookupPolicy(length=7, max_ngram=3, occurrence="first"),
    "llama.cpp": LookupPolicy(length=7, max_ngram=2, min_ngram=2, occurrence="mapped"),
}


def exported(
    engine: str,
    policy: TreePolicy,
    form: DrafterForm = "model",
    *,
    temperature: float = 0.7,
    version: str | None = None,
) -> Exported:
    cell = cell_with(1, 100, policy, drafter_of(policy.kind), 200.0)
    plan = replace(plan_with(cell), temperature=temperature)
    drafters = {"small": engine_drafter(form)}
    return export_plan(
        plan, ENGINES[engine], drafters, target="large", version=version or None, rates=rates_of_plan(plan)
    )


@pytest.mark.parametrize(
    ("engine", "version"), [("sglang", ""), ("vllm", "0.20"), ("tensorrt-llm", ""), ("llama.cpp", "")]
)
def test_an_engine_that_drafts_what_is_likeliest_carries_a_drawn_plan_nearly(engine: str, version: str) -> None:
    (dropped,) = exported(engine, CHAIN, version=version).dropped
    assert "drafts its drafter's likeliest tokens" in dropped.reason and "priced as chain of 3" in dropped.gets
    assert not exported(engine, CHAIN, version=version, temperature=0.0).dropped


@pytest.mark.parametrize("engine", COPIES)
def test_copies_of_the_text_are_the_same_at_any_temperature(engine: str) -> None:
    assert not exported(engine, COPIES[engine]).dropped


def test_a_way_that_differs_already_differs_twice() -> None:
    (dropped,) = exported("llama.cpp", DOUBTING).dropped
    assert "does not verify the token it doubts" in dropped.reason and "likeliest" in dropped.reason


@pytest.mark.parametrize("engine", ENGINES)
def test_no_server_is_said_to_accept_as_planned(engine: str) -> None:
    assert not [note for note in exported(engine, CHAIN).notes if "accepted as planned" in note]


def test_vllm_draws_its_drafts_where_it_can() -> None:
    found = exported("vllm", CHAIN, "eagle3")
    assert '"draft_sample_method": "probabilistic"' in found.command and not found.dropped
    assert any("drafts are drawn too" in note for note in found.notes)
    greedy = exported("vllm", CHAIN, "eagle3", temperature=0.0)
    assert "draft_sample_method" not in greedy.command and not any("drawn" in note for note in greedy.notes)
    assert "draft_sample_method" not in exported("vllm", COPIES["vllm"]).command


def test_a_table_that_is_padded_otherwise_has_its_likeliest_tokens_drafted() -> None:
    vllm, padded = ENGINES["vllm"], replace(engine_drafter(), tables=(96, 100))
    setting = vllm.setting(CHAIN, padded, "0.32")
    assert isinstance(setting, Setting)
    drawn = vllm.sampled(setting, "0.32")
    assert isinstance(drawn, Setting) and "likeliest" in drawn.differs and drawn.knobs == setting.knobs


def test_a_plan_of_a_cpu_is_told_that_vllm_draws_wrong_tokens_there() -> None:
    def is_told(policy: TreePolicy, temperature: float, kind: Literal["cpu", "cuda"]) -> bool:
        return any("draws wrong tokens" in note for note in exported_on(kind, policy, temperature).notes)

    assert is_told(CHAIN, 0.7, "cpu") and is_told(COPIES["vllm"], 0.7, "cpu")
    assert not is_told(CHAIN, 0.7, "cuda") and not is_told(CHAIN, 0.0, "cpu") and not is_told(PlainPolicy(), 0.7, "cpu")


def exported_on(kind: Literal["cpu", "cuda"], policy: TreePolicy, temperature: float) -> Exported:
    plan = plan_with(cell_with(1, 100, policy, drafter_of(policy.kind), 200.0))
    plan = replace(plan, temperature=temperature, device=replace(plan.device, kind=kind))
    drafters = {"small": engine_drafter()}
    return export_plan(plan, ENGINES["vllm"], drafters, target="large", version=None, rates=rates_of_plan(plan))


def test_assistants_draw_their_drafts_and_doubt_otherwise() -> None:
    assert not exported("transformers", CHAIN).dropped
    (dropped,) = exported("transformers", DOUBTING).dropped
    assert "doubts by its drafter's own chance" in dropped.reason
    assert not exported("transformers", DOUBTING, temperature=0.0).dropped


def test_openvino_draws_chains_and_no_trees() -> None:
    assert not exported("openvino", CHAIN, "eagle3").dropped
    assert not exported("openvino", TREE, "eagle3", temperature=0.0).dropped
    (dropped,) = exported("openvino", TREE, "eagle3").dropped
    assert "for greedy decoding only" in dropped.reason
