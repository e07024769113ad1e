"""What a configuration says is obeyed, and a model whose drafts could not be verified exactly is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from spectune.errors import ModelError
from spectune.runtime.models.configuration import longest_context_of
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.loading import causal_model

from ..support.tiny_models import FAMILIES, SIZES, WINDOW, plain_logits, tiny_model

LENGTH = 20
TEXT = np.random.default_rng(5).integers(0, SIZES["vocab_size"], (1, LENGTH))


def read(model: CausalModel) -> Tensor:
    """Return logits (n, vocabulary) of the text in one forward."""
    step = lay_out(
        TEXT, np.arange(LENGTH), [0], np.tri(LENGTH, dtype=np.bool_)[None], dtype=model.dtype, device=model.device
    )
    return model.forward(step, model.new_cache(1, LENGTH))[0]


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"sliding_window": WINDOW}),  # a field that the family does not have
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
        ("gemma", {"tie_word_embeddings": True}),
        ("gemma3", {"final_logit_softcapping": 4.0}),
    ],
)
@pytest.mark.parametrize("wrap", [LeanModel, GenericModel])
def test_what_a_configuration_says_is_obeyed(wrap: Any, family: str, changes: dict[str, Any]) -> None:
    model = tiny_model(family, **changes)
    expected = plain_logits(model, TEXT[0].tolist())
    torch.testing.assert_close(read(wrap(model)), expected, rtol=0, atol=1e-9)


LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": LENGTH,
    "short_factor": [1.0, 2.0, 3.0, 4.0],
    "long_factor": [5.0, 6.0, 7.0, 8.0],
}


@pytest.mark.parametrize("wrap", [LeanModel, GenericModel])
def test_angles_that_change_with_the_length_of_the_text_end_the_longest_context(wrap: Any) -> None:
    model = tiny_model("llama", rope_parameters=LONG)
    expected = plain_logits(model, TEXT[0].tolist())
    ours = wrap(model)
    assert ours.longest_context == longest_context_of(model.config) == LENGTH
    torch.testing.assert_close(read(ours), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("wrap", [LeanModel, GenericModel])
def test_angles_that_are_stretched_reach_as_far_as_that_whatever_positions_are_told(wrap: Any) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.5, "original_max_position_embeddings": 8}
    model = tiny_model("qwen2", rope_parameters=yarn, max_position_embeddings=8)
    ours = wrap(model)
    assert ours.longest_context == longest_context_of(model.config) == LENGTH
    torch.testing.assert_close(read(ours), plain_logits(model, TEXT[0].tolist()), rtol=0, atol=1e-9)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "linear_attention": ("Qwen3Next", {**SIZES, "layer_types": ["linear_attention", "full_attention"]}),
    "recurrent state": ("Rwkv", {"hidden_size": 32, "vocab_size": 50, "num_hidden_layers": 2}),
    "local attention": (
        "GPTNeo",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    "what follows them": ("Gemma", {**SIZES, "use_bidirectional_attention": True}),
    "compressed keys and values": (
        "DeepseekV3",
        {**SIZES, "kv_lora_rank": 8, "q_lora_rank": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    ),
    "chunked_attention": ("Llama4Text", {**SIZES, "num_local_experts": 2, "head_dim": 8}),
    "places of its tokens": ("Bloom", {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_model_that_cannot_verify_trees_is_refused_by_name(reason: str) -> None:
    kind, sizes = REFUSED[reason]
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    words = rf"folder is of type {config.model_type}, which .*{reason}.*; use a model .*: spectune tune -- COMMAND$"
    with pytest.raises(ModelError, match=words):
        causal_model(model, "folder")


def test_attention_that_obeys_no_tree_is_refused() -> None:
    model = tiny_model("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ModelError, match="attention flash_attention_2, which obeys no mask"):
        causal_model(model, "folder")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_loads_lean(name: str) -> None:
    assert isinstance(causal_model(tiny_model(name), name), LeanModel)
