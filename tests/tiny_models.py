"""Tiny random models whose argmax is decisive, for tests that need a real forward."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spectune.runtime.models.lean import LeanModel


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
    return LlamaForCausalLM(config).eval().double()


def tiny_lean(*, layers: int, seed: int, vocabulary: int = 24) -> LeanModel:
    """Return the lean form of `tiny_llama`."""
    return LeanModel(tiny_llama(layers=layers, seed=seed, vocabulary=vocabulary))
