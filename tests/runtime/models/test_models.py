"""Forwards of every family against transformers' own, and projections against F.linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.layout import ancestors, lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.norm import Norm
from spectune.runtime.models.places import windowed
from spectune.runtime.models.projection import Projection

from ...support.tiny_models import plain_logits, tiny_gpt2, tiny_neox

SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LEAN: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama, biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
    "llama, tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama, scaled positions": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0})
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
}
GENERIC: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma": lambda: GemmaForCausalLM(GemmaConfig(**SIZES, head_dim=8)),
    "gpt_neox": lambda: tiny_neox(layers=2, seed=0),
    "gpt2": lambda: tiny_gpt2(seed=0, positions=64),
    "llama": LEAN["llama"],
}
TEXTS = ((3, 1, 4, 1, 5, 9, 2, 6), (2, 7, 1, 8, 2, 8, 1, 8))


def random_model(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """Return the model in float32 with every weight random, biases and norms too."""
    torch.manual_seed(0)
    model: PreTrainedModel = make().eval().float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn_like(weight))
            assert weight.abs().sum() > 0, name
    return model


def in_pieces(model: CausalModel, texts: Sequence[Sequence[int]], cuts: Sequence[int]) -> Tensor:
    """Return logits (batch, n, vocabulary) of texts fed piece by piece through one cache."""
    cache, tokens, logits = model.new_cache(len(texts), 16), np.array(texts), []
    for start, end in zip([0, *cuts], [*cuts, tokens.shape[1]], strict=True):
        step = lay_out(
            tokens[:, start:end],
            np.arange(end - start),
            [start] * len(texts),
            np.tri(end - start, dtype=np.bool_)[None],
            dtype=model.dtype,
            device=model.device,
        )
        logits.append(model.forward(step, cache))
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("cuts", [(), (3, 4), (1, 6)])
@pytest.mark.parametrize("family", LEAN)
def test_the_lean_forward_has_transformers_logits(family: str, cuts: tuple[int, ...]) -> None:
    model = random_model(LEAN[family])
    ours = in_pieces(LeanModel(model), TEXTS, cuts)
    torch.testing.assert_close(ours, torch.stack([plain_logits(model, text) for text in TEXTS]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cuts", [(), (3, 4)])
@pytest.mark.parametrize("family", GENERIC)
def test_the_generic_forward_has_transformers_logits(family: str, cuts: tuple[int, ...]) -> None:
    model = random_model(GENERIC[family])
    ours = in_pieces(GenericModel(model), TEXTS, cuts)
    torch.testing.assert_close(ours, torch.stack([plain_logits(model, text) for text in TEXTS]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrap", [LeanModel, GenericModel])
def test_take_returns_one_token_of_each_row(wrap: Callable[[PreTrainedModel], CausalModel]) -> None:
    model = wrap(random_model(LEAN["llama"]))
    whole = in_pieces(model, TEXTS, ())
    step = lay_out(
        np.array(TEXTS),
        np.arange(8),
        [0, 0],
        np.tri(8, dtype=np.bool_)[None],
        take=np.array([7, 2]),
        dtype=model.dtype,
        device=model.device,
    )
    taken = model.forward(step, model.new_cache(2, 16))
    torch.testing.assert_close(taken, torch.stack([whole[0, 7], whole[1, 2]]).unsqueeze(1))


@pytest.mark.parametrize("wrap", [LeanModel, GenericModel])
def test_a_forward_writes_only_its_own_slots(wrap: Callable[[PreTrainedModel], CausalModel]) -> None:
    model = wrap(random_model(LEAN["llama"]))
    cache = model.new_cache(3, 16)
    step = lay_out(
        np.array(TEXTS[:1]),
        np.arange(8),
        [0],
        np.tri(8, dtype=np.bool_)[None],
        dtype=model.dtype,
        device=model.device,
        first_slot=1,
    )
    model.forward(step, cache)
    assert cache.states[:, 1, :8].abs().amin() > 0
    assert not cache.states[:, [0, 2]].any() and not cache.states[:, 1, 8:].any()


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_projection_is_a_linear_layer(dtype: torch.dtype, has_bias: bool, rows: int) -> None:
    weight, x, residual, bias = projection_case(dtype, rows)
    layer = Projection(weight, bias if has_bias else None)
    expected = F.linear(x.double(), weight.double(), bias.double() if has_bias else None)
    torch.testing.assert_close(layer(x).double(), expected, rtol=0.01, atol=0.02)
    torch.testing.assert_close(layer.added_to(residual, x).double(), residual.double() + expected, rtol=0.01, atol=0.04)


def projection_case(dtype: torch.dtype, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weight (40, 64), input, residual and bias."""
    source = torch.Generator().manual_seed(rows)
    shapes = ((40, 64), (rows, 64), (rows, 40), (40,))
    weight, x, residual, bias = (torch.randn(shape, generator=source).to(dtype) for shape in shapes)
    return weight / 8, x, residual, bias


def test_a_bfloat16_model_is_close_to_its_float32_self() -> None:
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, "initializer_range": 0.1})).eval()
    exact = in_pieces(LeanModel(model), TEXTS, (3,))
    rounded = in_pieces(LeanModel(model.bfloat16()), TEXTS, (3,))
    torch.testing.assert_close(rounded.float(), exact, rtol=0, atol=0.05 * float(exact.abs().max()))


def test_a_norm_of_gemma_rounds_as_gemma_does() -> None:
    theirs, source = GemmaRMSNorm(64), torch.Generator().manual_seed(0)
    with torch.no_grad():
        theirs.weight.copy_(0.01 * torch.randn(64, generator=source))
    theirs = theirs.bfloat16()
    x = torch.randn(500, 64, generator=source).bfloat16()
    ours = Norm(weight=theirs.weight.detach().float() + 1, eps=theirs.eps)
    assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_a_window_counts_places_in_the_text(window: int) -> None:
    rng = np.random.default_rng(window)
    context, parents = 9, np.array([[-1, *(int(rng.integers(0, node)) for node in range(1, 12))]])
    sees = np.concatenate((np.ones((1, 12, context), dtype=np.bool_), ancestors(parents)), axis=2)
    depths = [0]
    for parent in parents[0, 1:]:
        depths.append(depths[parent] + 1)
    places = np.array([*range(context), *(context + depth for depth in depths)])
    expected = sees & (places[None, None, :] > places[context:][None, :, None] - window)
    bias = torch.zeros(sees.shape).masked_fill_(~torch.from_numpy(sees), -torch.inf)
    assert torch.equal(windowed(bias, window) == 0, torch.from_numpy(expected))
