"""Tiny random models whose argmax is decisive, for tests that need a real forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from spectune.runtime.models.lean import LeanModel

Model = TypeVar("Model", bound=PreTrainedModel)

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = 6
ONE_WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW}
FAMILIES: Mapping[str, tuple[str, dict[str, Any]]] = {  # the configuration, and what sets it apart from `SIZES`
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, windowed": ("Mistral", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {}),
    "qwen2, windowed": ("Qwen2", ONE_WINDOWED),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, windowed": ("Qwen3", {"head_dim": 16, **ONE_WINDOWED}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 8.0}),
    "gemma3": ("Gemma3Text", {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]}),
}


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


def tiny_model(family: str, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Return a random model of one of `FAMILIES` in float64; biases and norms are random too."""
    name, apart = FAMILIES[family]
    return random_model(getattr(transformers, f"{name}Config")(**{**SIZES, **apart, **changes}), seed=seed)


def random_model(config: Any, *, seed: int = 0) -> PreTrainedModel:
    """Return a random model of any configuration in float64, with exact norms."""
    torch.manual_seed(seed)
    built: Any = AutoModelForCausalLM.from_config(
        config, experts_implementation="eager"
    )  # the fused ones know no float64
    model: PreTrainedModel = built.eval().double()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn_like(weight))
    return with_exact_norms(model)


def with_exact_norms(model: Model) -> Model:
    """Let transformers' RMS norms compute in the model's own precision; they round to float32 whatever it is."""
    for module in model.modules():
        for name, norm in list(module.named_children()):
            if type(norm).__name__.endswith("RMSNorm"):
                setattr(module, name, ExactNorm(norm))
    return model


class ExactNorm(nn.Module):
    """What another norm computes, but for its rounding."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.offset = norm.weight, float(type(norm).__name__.startswith("Gemma"))
        self.eps = getattr(norm, "variance_epsilon", None) or norm.eps
        x = torch.linspace(-2, 3, 3 * norm.weight.numel(), dtype=norm.weight.dtype).view(3, -1)
        torch.testing.assert_close(self(x), norm(x), rtol=1e-5, atol=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight + self.offset, self.eps)


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


def generated(model: PreTrainedModel, prompts: np.ndarray, tokens: int) -> list[tuple[int, ...]]:
    """Continue prompts of one length, (rows, length), by transformers' own greedy `generate`."""
    ids, writer = torch.from_numpy(prompts), cast(Any, model)  # transformers types the self of its mixin as a protocol
    out = writer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [tuple(row) for row in out[:, ids.shape[1] :].tolist()]


def perturbed(model: Model, spread: float, seed: int = 0) -> Model:
    """Return a copy with every weight scaled by 1 + spread * noise: a drafter that is often right."""
    copy, noise = deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in copy.parameters():
            weight.mul_(1 + spread * torch.randn(weight.shape, generator=noise, dtype=weight.dtype))
    return copy


def with_places(llama: LlamaForCausalLM, places: int) -> LeanModel:
    """Return the lean model of one whose positions end earlier."""
    shorter = deepcopy(llama)
    shorter.config.max_position_embeddings = places
    return LeanModel(shorter)
