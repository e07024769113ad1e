"""The generator over a plan: its caches hold whatever a cell of the plan may draft."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from spectune.planner.policy import ChainPolicy, OptTreePolicy, TalonPolicy, TreePolicy
from spectune.runtime.choice import Choice
from spectune.runtime.generator import Generator
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.setup import PLAIN, RoundSetup, always

from .plans import plan_of
from .synthetic import model
from .tiny_family import byte_tokenizer
from .tiny_models import perturbed, tiny_llama

TOKENIZER: PreTrainedTokenizerFast = byte_tokenizer("to be or not to be")
TARGET = tiny_llama(layers=1, seed=0, vocabulary=len(TOKENIZER))
PROMPTS = ["to be", "or", "not to be or"]
WIDE: list[TreePolicy] = [
    ChainPolicy(length=4),
    TalonPolicy(nodes=60, gate=0.05, top_k=10, children=49),
    OptTreePolicy(nodes=60, least_gain=-1.0, max_depth=9, children=60),  # drafts 480 nodes, verifies 61
]


def generated(policy: TreePolicy | None) -> list[tuple[int, ...]]:
    plan = plan_of([(1, 10), (3, 10)])
    schedule, choice = always(PLAIN), Choice(plan=None, source="none", reason="a test")
    if policy is not None:
        run_tokens = tuple(range(policy.max_verify_tokens + 1))
        cells = tuple(replace(cell, policy=policy, drafter="small", run_tokens=run_tokens) for cell in plan.cells)
        schedule = always(RoundSetup(policy=policy, drafter="small"))
        choice = Choice(
            plan=replace(plan, cells=cells, drafters=(("small", model("small")),)), source="file", reason="a test"
        )
    drafters = {"small": LeanModel(perturbed(TARGET, 0.02))}
    generator = Generator(LeanModel(TARGET), TOKENIZER, drafters, schedule, choice)
    return [done.tokens for done in generator.generate_batch(PROMPTS, max_new_tokens=12)]


@pytest.mark.parametrize("policy", WIDE, ids=lambda policy: policy.label)
def test_every_policy_of_a_plan_finds_room_and_changes_no_text(policy: TreePolicy) -> None:
    assert generated(policy) == generated(None)
