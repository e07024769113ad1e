"""Tiny random models whose argmax is decisive, for tests that need a real forward."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from spectune.runtime.models.lean import LeanModel

Model = TypeVar("Model", bound=PreTrainedModel)


def tiny_llama(*, layers: int, seed: int, vocabulary: int = 24, hidden: int = 32) -> LlamaForCausalLM:
    """Return a random Llama in float64 with spread weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval().double()
    return with_exact_norms(model)


def with_exact_norms(model: Model) -> Model:
    """Let transformers' RMS norms compute in the model's own precision; they round to float32 whatever it is."""
    for module in model.modules():
        for name, norm in list(module.named_children()):
            if isinstance(norm, LlamaRMSNorm):
                exact = torch.nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon, dtype=norm.weight.dtype)
                exact.weight = norm.weight
                setattr(module, name, exact)
    return model


def tiny_lean(*, layers: int, seed: int, vocabulary: int = 24) -> LeanModel:
    """Return the lean form of `tiny_llama`."""
    return LeanModel(tiny_llama(layers=layers, seed=seed, vocabulary=vocabulary))


def tiny_neox(*, layers: int, seed: int, vocabulary: int = 24, positions: int = 512) -> GPTNeoXForCausalLM:
    """Return a random GPT-NeoX in float64 with spread weights: a family only the generic forward knows."""
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=positions,
        initializer_range=0.3,
    )
    model: GPTNeoXForCausalLM = GPTNeoXForCausalLM(config).eval().double()
    return model


def tiny_gpt2(*, seed: int, positions: int) -> GPT2LMHeadModel:
    """Return a random GPT-2 in float64 with spread weights: its positions are a table that ends."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=24, n_embd=32, n_layer=2, n_head=4, n_positions=positions, initializer_range=0.3, eos_token_id=None
    )
    model: GPT2LMHeadModel = GPT2LMHeadModel(config).eval().double()
    return model


def plain_logits(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """Return transformers' own logits (n, vocabulary) over a text, without cache or our code."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits


def perturbed(model: Model, spread: float, seed: int = 0) -> Model:
    """Return a copy with every weight scaled by 1 + spread * noise: a drafter that is often right."""
    copy, noise = deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in copy.parameters():
            weight.mul_(1 + spread * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    return copy
