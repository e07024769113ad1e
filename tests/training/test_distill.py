"""Distillation brings drafters nearer to a target that stays what it was."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from demo_models import distil
from transformers import LlamaForCausalLM

from spectune.training.trainer import TrainingSettings, batches

from ..support.tiny_models import plain_logits, tiny_llama

SETTINGS = TrainingSettings(
    steps=40, batch=4, sequence_tokens=16, warmup_steps=2, matrix_lr=0.01, other_lr=0.01, decay_share=0.5
)
TEXT = np.random.default_rng(5).integers(0, 24, 400).astype(np.uint16)


def fresh() -> tuple[LlamaForCausalLM, dict[str, LlamaForCausalLM]]:
    drafters = {"one": tiny_llama(layers=1, seed=1).float(), "two": tiny_llama(layers=2, seed=2).float()}
    return tiny_llama(layers=2, seed=0).float(), drafters


def divergence(target: LlamaForCausalLM, drafter: LlamaForCausalLM, tokens: list[int]) -> float:
    """Sum p log(p / q) token by token, in nats a token."""
    p = plain_logits(target, tokens).double().softmax(-1).tolist()
    q = plain_logits(drafter, tokens).double().softmax(-1).tolist()
    nats = [a * math.log(a / b) for left, right in zip(p, q, strict=True) for a, b in zip(left, right, strict=True)]
    return float(sum(nats)) / len(tokens)


@cache
def distilled() -> tuple[LlamaForCausalLM, dict[str, LlamaForCausalLM], list[float]]:
    target, drafters = fresh()
    losses = list(distil(drafters, target, TEXT, SETTINGS))
    return target, drafters, losses


@pytest.mark.parametrize("name", ["one", "two"])
def test_every_drafter_comes_nearer_to_the_target(name: str) -> None:
    target, drafters, _ = distilled()
    some = TEXT[:16].tolist()
    assert divergence(target, drafters[name], some) < 0.7 * divergence(target, fresh()[1][name], some)


def test_the_target_stays_the_same_bit_for_bit() -> None:
    target, untouched = distilled()[0], fresh()[0].state_dict()
    assert all(torch.equal(weight, untouched[name]) for name, weight in target.state_dict().items())
    assert all(weight.grad is None for weight in target.parameters())


def test_the_loss_of_a_step_is_the_sum_of_the_drafters_divergences() -> None:
    target, drafters = fresh()
    target.lm_head.weight.data *= 0.3  # a flatter target, so that the two directions differ
    one_step = TrainingSettings(steps=1, batch=1, sequence_tokens=16)
    read = next(batches(TEXT, one_step))[0, :-1].tolist()
    expected = sum(divergence(target, drafter, read) for drafter in drafters.values())
    backwards = sum(divergence(drafter, target, read) for drafter in drafters.values())
    loss = next(distil(drafters, target, TEXT, one_step))
    assert loss == pytest.approx(expected, rel=0.03)  # the forward runs in bf16
    assert backwards != pytest.approx(expected, rel=0.1)


def test_losses_fall() -> None:
    losses = distilled()[2]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
