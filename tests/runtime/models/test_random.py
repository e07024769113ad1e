"""Models of a configuration alone: the right shape, random weights, nothing read from a disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BloomConfig, GPTNeoXConfig, LlamaConfig, LlamaForCausalLM

from spectune.errors import DeviceError, ModelError
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.generic import GenericModel
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.random import count_parameters, load_random

from ...support.allocator import count_bytes

SIZES: dict[str, Any] = {"vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """Return the config.json of a small Llama, and no weights beside it."""
    LlamaConfig(**SIZES, num_hidden_layers=3, num_key_value_heads=2, tie_word_embeddings=True).save_pretrained(tmp_path)
    return tmp_path / "config.json"


def logits(model: CausalModel) -> Tensor:
    """Return the logits of a short text."""
    text, visible = np.array([[1, 2, 3, 4]]), np.tri(4, dtype=np.bool_)[None]
    step = lay_out(text, np.arange(4), [0], visible, dtype=model.dtype, device=model.device)
    return model.forward(step, model.new_cache(1, 8)).float()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_llama_configuration_becomes_a_lean_model_of_its_dtype(llama: Path, dtype: str) -> None:
    model = load_random(llama, dtype=dtype)
    assert isinstance(model, LeanModel)
    assert str(model.dtype) == f"torch.{dtype}" and model.new_cache(1, 8).layers == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_more_than_one_layer_is_held_twice_on_the_way(tmp_path: Path, dtype: str) -> None:
    LlamaConfig(**SIZES, num_hidden_layers=12, max_position_embeddings=32).save_pretrained(tmp_path)
    models = list[CausalModel]()
    counted = count_bytes(lambda: models.append(load_random(tmp_path / "config.json", dtype=dtype)))
    layer = (4 * 32 * 32 + 3 * 32 * 48) * models[0].dtype.itemsize
    assert counted.peak_bytes < counted.left_bytes + layer


def test_another_family_becomes_a_generic_model(tmp_path: Path) -> None:
    GPTNeoXConfig(**SIZES, num_hidden_layers=2).save_pretrained(tmp_path)
    assert isinstance(load_random(tmp_path / "config.json", dtype="float32"), GenericModel)


def test_its_logits_are_finite_and_tell_tokens_apart(llama: Path) -> None:
    found = logits(load_random(llama, dtype="bfloat16"))
    assert bool(found.isfinite().all()) and float(found.std()) > 0.0


def test_equal_seeds_make_equal_models_and_others_do_not(llama: Path) -> None:
    first, again, other = (logits(load_random(llama, dtype="float32", seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_drawing_weights_leaves_the_callers_random_numbers_alone(llama: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_random(llama, dtype="float32")
    assert torch.equal(torch.rand(3), expected)


def test_parameters_are_counted_as_transformers_counts_them(llama: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(llama))
    assert count_parameters(llama) == model.num_parameters()


def test_parameters_of_a_large_model_are_counted_without_holding_them(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 128256,
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
    }
    LlamaConfig(**sizes, num_attention_heads=128, num_key_value_heads=8).save_pretrained(tmp_path)
    assert count_parameters(tmp_path / "config.json") == 405_853_388_800  # Llama 3.1 405B, arXiv:2407.21783


def test_a_missing_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model configuration at"):
        load_random(tmp_path / "config.json", dtype="float32")


def test_a_configuration_of_no_language_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelError, match="no causal language model"):
        load_random(tmp_path / "config.json", dtype="float32")


def test_an_unknown_dtype_is_refused(llama: Path) -> None:
    with pytest.raises(ModelError, match="unknown dtype 'int3'"):
        load_random(llama, dtype="int3")


def test_what_a_loaded_model_is_refused_for_is_refused_here(tmp_path: Path) -> None:
    BloomConfig(vocab_size=24, hidden_size=16, n_layer=1, n_head=2).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="is of type bloom"):
        load_random(tmp_path / "config.json", dtype="float32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this torch can use a GPU")
def test_a_device_torch_cannot_use_is_named(llama: Path) -> None:
    with pytest.raises(DeviceError, match="on cuda:0"):
        load_random(llama, dtype="float32", device="cuda:0")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_are_drawn_on_the_gpu(llama: Path) -> None:
    model = load_random(llama, dtype="bfloat16", device="cuda:0")
    assert logits(model).device.type == "cuda"
