"""A confident chain against what transformers' own assisted generation proposes."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from spectune.planner.strategies.confident_chain import ConfidentChainPolicy
from spectune.runtime.batch.sequence import Request, Sequence
from spectune.runtime.drafters.model import ModelDrafter
from spectune.runtime.models.lean import LeanModel

from ..support.tiny_models import tiny_llama

MODEL = tiny_llama(layers=2, seed=0)
Prompt = tuple[int, ...]
PROMPTS: list[Prompt] = [tuple(np.random.default_rng(n).integers(0, 24, 1 + n % 7).tolist()) for n in range(12)]
POLICIES = [
    ConfidentChainPolicy(length=length, confidence=confidence)
    for length in (1, 6, 20)
    for confidence in (0.2, 0.4, 0.6)
]


def proposed_by_transformers(prompt: Prompt, policy: ConfidentChainPolicy) -> Prompt:
    """Return the candidates of one round behind a prompt; nothing was accepted before, so nothing is adapted."""
    assistant = deepcopy(MODEL)
    assistant.generation_config.num_assistant_tokens = policy.length
    assistant.generation_config.assistant_confidence_threshold = policy.confidence
    assistant.generation_config.eos_token_id = None  # as in a text that goes on
    ids = torch.LongTensor([prompt])
    generator = AssistedCandidateGenerator(
        input_ids=ids,
        assistant_model=assistant,
        generation_config=GenerationConfig(max_length=200, min_length=0, do_sample=False, pad_token_id=0),
        model_kwargs={"attention_mask": torch.ones_like(ids)},
    )
    candidates, _ = generator.get_candidates(ids)
    return tuple(candidates[0, len(prompt) :].tolist())


@cache
def drafted(policy: ConfidentChainPolicy) -> list[Prompt]:
    """Return our chains behind all prompts, drafted as one batch."""
    sequences = [Sequence(Request(prompt=prompt, max_new_tokens=50), index) for index, prompt in enumerate(PROMPTS)]
    drafter = ModelDrafter(LeanModel(MODEL), slots=len(PROMPTS), capacity=80)
    for slot, sequence in enumerate(sequences):
        drafter.admit(slot, sequence)
    draft = drafter.draft(sequences, policy)
    return [tuple(draft.tokens[row, 1:size].tolist()) for row, size in enumerate(draft.sizes.tolist())]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.code)
def test_a_confident_chain_is_what_assisted_generation_proposes(policy: ConfidentChainPolicy) -> None:
    assert drafted(policy) == [proposed_by_transformers(prompt, policy) for prompt in PROMPTS]


def test_the_chains_compared_here_stop_in_many_places() -> None:
    lengths = {len(chain) for policy in POLICIES for chain in drafted(policy)}
    assert len(lengths) > 6
