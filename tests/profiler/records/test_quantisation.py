"""What estimates count of quantised checkpoints: the bits that are stored, for every method and its exceptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spectune.db import open_store
from spectune.errors import ModelError
from spectune.profiler.catalogue import catalogued
from spectune.profiler.configuration import read_architecture
from spectune.profiler.protocols import SurfaceKey
from spectune.profiler.records.configuration import architecture_of
from spectune.profiler.records.stored import StoredPart
from spectune.profiler.roofline import bound_surface
from spectune.tuning.estimates.estimate import EstimateRequest, estimate
from spectune.tuning.request import Models

H100 = catalogued("H100-SXM").limits
KEY = SurfaceKey(device="d" * 16, model="m" * 16, role="verify", regime="eager", dtype="bfloat16")
LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LLAMA_70B = LLAMA_8B | {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
GPT_OSS_20B: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "num_local_experts": 32,
    "experts_per_token": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}
LINEAR_8B = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
HEAD_8B = 128256 * 4096
FIRST_HALF = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(16) for name in "qkvo"]
INT4 = {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel"}


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]} | more


def bound_ms(config: dict[str, Any], tokens: int = 1, batch: int = 1) -> float:
    return bound_surface(architecture_of(config), H100, KEY, [(batch, 64, tokens)]).latency(batch, 64, tokens).ms


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "fbgemm_fp8"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True}, 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, 3 + 19 / 32),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        (compressed(INT4), 4 + 16 / 128),
        (compressed(FLOAT8), 8),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["*lm_head*"]}, 4.5),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, 8),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4.5),
        ({"_load_in_4bit": True, "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4 + (8 + 1 / 8) / 64),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, 8),
        ({"quant_method": "torchao", "quant_type": "float8_dynamic_activation_float8_weight"}, 8),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}},
            },
            4 + 32 / 64,
        ),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            4.5,
        ),
        ({"quant_method": "quanto", "weights": "int4"}, 4),
        ({"quant_method": "eetq", "weights": "int8"}, 8),
    ],
    ids=lambda value: str(value.get("quant_method", "untold")) if isinstance(value, dict) else f"{value:.3g}",
)
def test_every_matrix_but_the_head_counts_with_its_stored_bits(quantization: dict[str, Any], bits: float) -> None:
    found = architecture_of(LLAMA_8B | {"quantization_config": quantization})
    assert found.stored.uncounted == ""
    read = LINEAR_8B * bits / 8 + 2 * (HEAD_8B + found.layer_vectors * 32 + found.final_vectors)
    assert found.work("bfloat16", 1, 0, 1).weight_bytes == pytest.approx(read)
    assert found.weight_bytes("bfloat16") == pytest.approx(read + 2 * HEAD_8B, abs=1)


@pytest.mark.parametrize(
    ("quantization", "expected_ms"),
    [
        (None, 4.48),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, 2.40),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 1.39),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 1.39),
    ],
)
def test_a_token_of_an_8b_model_takes_the_time_to_read_its_stored_bits(
    quantization: dict[str, Any] | None, expected_ms: float
) -> None:
    told = {} if quantization is None else {"quantization_config": quantization}
    assert bound_ms(LLAMA_8B | told) == pytest.approx(expected_ms, rel=0.01)


def test_a_70b_model_in_float8_fits_where_its_bfloat16_form_does_not() -> None:
    whole = bound_surface(architecture_of(LLAMA_70B), H100, KEY, [(1, 64, 1)])
    assert "out of memory: needs 131" in str(whole.measurements[0].failure)
    stored = architecture_of(LLAMA_70B | {"quantization_config": {"quant_method": "fp8"}})
    assert stored.weight_bytes("bfloat16") / 2**30 == pytest.approx(67.7, abs=0.1)
    assert bound_surface(stored, H100, KEY, [(1, 64, 1)]).measurements[0].failure is None


@pytest.mark.parametrize(
    ("quantization", "share"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["self_attn"]}, 0.0),
        (compressed(INT4, ignore=["lm_head", "re:.*self_attn.*"]), 0.0),
        (compressed(INT4, ignore=["lm_head", "re:.*(q|k|v|o)_proj$"]), 0.0),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*self_attn*"]}, 0.0),
        (compressed(INT4, ignore=["lm_head", *FIRST_HALF]), 0.5),
        ({"quant_method": "fp8", "modules_to_not_convert": [f"model.layers.{i}" for i in range(8)]}, 0.75),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {r"-:.*\.self_attn\..*": {}}}, 0.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["q_proj", "o_proj"]}, 0.2),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": None}, 1.0),
    ],
)  # fmt: skip
def test_modules_that_are_not_quantised_count_whole(quantization: dict[str, Any], share: float) -> None:
    stored = architecture_of(LLAMA_8B | {"quantization_config": quantization}).stored
    assert stored.attention.share == pytest.approx(share)
    assert stored.head == StoredPart()


def test_a_head_that_is_quantised_counts_so() -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}
    for quantization in (gptq, compressed(INT4, ignore=[])):
        assert architecture_of(LLAMA_8B | {"quantization_config": quantization}).stored.head.share == 1.0
    tied = LLAMA_8B | {"tie_word_embeddings": True, "quantization_config": gptq}
    assert architecture_of(tied).stored.head == StoredPart()


def test_groups_of_several_schemes_have_their_own_bits() -> None:
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": FLOAT8},
        "group_1": {"targets": ["re:.*mlp.*"], "weights": INT4},
    }
    told = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    stored = architecture_of(LLAMA_8B | {"quantization_config": told}).stored
    assert (stored.attention.bits, stored.dense.bits) == (8.0, 4.125)


def test_of_gpt_oss_the_experts_alone_are_quantised() -> None:
    ignored = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    told = {"quant_method": "mxfp4", "modules_to_not_convert": ignored}
    found = architecture_of(GPT_OSS_20B | {"quantization_config": told})
    assert (found.stored.experts.bits, found.stored.attention, found.stored.head) == (4.25, StoredPart(), StoredPart())
    assert found.parameters == 20_914_757_184
    assert found.weight_bytes("bfloat16") / 1e9 == pytest.approx(13.76, abs=0.1)  # the published files


def test_products_with_quantised_activations_run_at_the_speed_of_their_format() -> None:
    rows = 16 * 64
    whole, packed, both = (
        bound_ms(LLAMA_8B | told, tokens=64, batch=16)
        for told in (
            {},
            {"quantization_config": compressed(FLOAT8)},
            {"quantization_config": {"quant_method": "fp8"}},
        )
    )
    head_ms = 2 * rows * HEAD_8B / 989.4e12 * 1e3
    attention_ms = 4 * 32 * 128 * rows * 64 * 32 / 989.4e12 * 1e3
    linear_ms = 2 * rows * LINEAR_8B / 989.4e12 * 1e3
    assert whole == packed == pytest.approx(linear_ms + head_ms + attention_ms)
    assert both == pytest.approx(linear_ms * 989.4 / 1978.9 + head_ms + attention_ms)


def test_a_device_without_the_format_multiplies_in_that_of_the_activations() -> None:
    a100 = catalogued("A100-SXM-80").limits
    told = LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}}
    whole, stored = (
        bound_surface(architecture_of(config), a100, KEY, [(16, 64, 64)]).latency(16, 64, 64).ms
        for config in (LLAMA_8B, told)
    )
    assert stored == pytest.approx(whole)


def test_what_modelopt_says_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    assert read_architecture(tmp_path).stored.dense == StoredPart(share=1.0, bits=8.0, narrow_share=1.0)


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "wow"},
        {"quant_method": "vptq"},
        {"quant_method": "modelopt", "quant_algo": "W2A2"},
        {"quant_method": "awq"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "torchao", "quant_type": "autoquant"},
        {"quant_method": "bitsandbytes"},
        {"bits": 4},
    ],
)
def test_a_method_whose_bits_are_not_known_is_refused_by_name(quantization: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_8B | {"quantization_config": quantization}))
    with open_store(str(tmp_path / "store.db")) as store:
        with pytest.raises(ModelError, match="bits of its weights are not known") as refused:
            estimate(EstimateRequest(models=Models(target=config), device="H100-SXM"), store)
        assert store.surfaces() == []
    assert str(quantization.get("quant_method", "none")) in str(refused.value)


def test_an_estimate_says_which_bits_it_counts(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_8B | {"quantization_config": {"quant_method": "fp8"}}))
    with open_store(str(tmp_path / "store.db")) as store:
        done = estimate(EstimateRequest(models=Models(target=config), device="H100-SXM"), store)
    assert "fp8 weights count with the bits that are stored, 8.5 GiB in all" in done.assumptions[0]
