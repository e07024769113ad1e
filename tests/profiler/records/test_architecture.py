from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from spectune.errors import ModelError
from spectune.profiler.records.architecture import Architecture
from spectune.profiler.records.configuration import architecture_of
from spectune.runtime.models.configuration import longest_context_of

SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
HEAD: dict[str, Any] = {"head_dim": 10}
CHOSEN: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 17}
DENSE: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT: dict[str, Any] = {"kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("Llama", SIZES),
    ("Llama", SIZES | HEAD | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("Mistral", SIZES | HEAD),
    ("Phi3", SIZES),
    ("Qwen2", SIZES | {"tie_word_embeddings": True}),
    ("Qwen3", SIZES | HEAD),
    ("Gemma", SIZES | HEAD),
    ("Gemma2", SIZES | HEAD),
    ("GPT2", {"vocab_size": 48, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64}),
    ("GPT2", {"vocab_size": 48, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 33}),
    ("GPTNeoX", {name: size for name, size in SIZES.items() if name != "num_key_value_heads"}),
    ("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("Qwen3Moe", SIZES | HEAD | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 17}),
    ("Qwen3Moe", SIZES | HEAD | CHOSEN | {"num_experts": 4, "mlp_only_layers": [1]}),
    ("Qwen3Moe", SIZES | HEAD | CHOSEN | {"num_experts": 4, "decoder_sparse_step": 2}),
    ("Qwen2Moe", SIZES | CHOSEN | {"num_experts": 4, "shared_expert_intermediate_size": 11}),
    ("Qwen2Moe", SIZES | CHOSEN | {"num_experts": 4, "shared_expert_intermediate_size": 11, "mlp_only_layers": [0]}),
    ("DeepseekV2", SIZES | LATENT | CHOSEN | DENSE | {"q_lora_rank": None}),
    ("DeepseekV2", SIZES | LATENT | CHOSEN | DENSE | {"q_lora_rank": 9}),
    ("DeepseekV3", SIZES | LATENT | CHOSEN | DENSE | {"q_lora_rank": 9}),
    ("Glm4Moe", SIZES | HEAD | CHOSEN | DENSE | {"use_qk_norm": True, "attention_bias": False}),
    ("Dots1", SIZES | HEAD | CHOSEN | DENSE),
    ("Olmoe", SIZES | {"num_experts": 4, "num_experts_per_tok": 2}),
    ("GraniteMoe", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("Llama4", SIZES | HEAD | {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 64}),
    ("Llama4", SIZES | HEAD | {"num_local_experts": 4, "intermediate_size_mlp": 64, "interleave_moe_layer_step": 2}),
    ("GptOss", SIZES | HEAD | {"num_local_experts": 4, "num_experts_per_tok": 2}),
]


def built(name: str, sizes: dict[str, Any]) -> PreTrainedModel:
    """Return a random model of a family."""
    config = getattr(transformers, "Llama4TextConfig" if name == "Llama4" else f"{name}Config")(**sizes)
    head = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model: PreTrainedModel = getattr(transformers, head)(config).eval()
    return model


def written(config: PreTrainedConfig) -> dict[str, Any]:
    """Return a configuration as it lies in a model's folder."""
    read: dict[str, Any] = json.loads(config.to_json_string())
    return read


@pytest.mark.parametrize(("name", "sizes"), MODELS)
def test_the_parameters_are_those_of_the_model_transformers_builds(name, sizes):
    model = built(name, sizes)
    stored = sum(weight.numel() for weight in model.parameters())
    assert architecture_of(written(model.config)).parameters == stored


def test_the_text_part_of_a_model_with_several_modalities_counts():
    text = written(built("Gemma2", SIZES | HEAD).config)
    assert architecture_of({"model_type": "gemma3", "text_config": text}) == architecture_of(text)


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "head_dim"])
def test_a_missing_field_is_named(name):
    config = written(built("Qwen3", SIZES | HEAD).config)
    del config[name]
    with pytest.raises(ModelError, match=f"qwen3 lacks {name};"):
        architecture_of(config)


def test_a_field_missing_from_gpt2_goes_by_its_own_name():
    config = written(built("GPT2", {"vocab_size": 48, "n_embd": 24, "n_layer": 3, "n_head": 4}).config)
    del config["n_layer"]
    with pytest.raises(ModelError, match="n_layer"):
        architecture_of(config)


def test_an_unknown_family_is_told_the_known_ones():
    with pytest.raises(ModelError, match=r"'mamba'.*llama"):
        architecture_of({"model_type": "mamba"})


def test_layers_without_experts_between_layers_with_some_are_refused():
    config = written(built("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}).config)
    with pytest.raises(ModelError, match="not supported"):
        architecture_of(config | {"mlp_only_layers": [0]})


LLAMA = Architecture(
    family="llama",
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=3,
    intermediate=10,
    vocabulary=50,
    is_tied=False,
    is_gated=True,
    layer_vectors=16,
    final_vectors=8,
)


def test_the_flops_of_the_matrices_are_those_torch_counts():
    model = built("Llama", SIZES | HEAD)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(3, 5, dtype=torch.long))
    counted = counter.get_flop_counts()["Global"]
    matmuls = sum(flops for kind, flops in counted.items() if kind in (torch.ops.aten.mm, torch.ops.aten.addmm))
    assert architecture_of(written(model.config)).work("float32", 3, 0, 5).matmul_flops == matmuls


def test_a_token_behind_a_context_attends_to_every_position_of_it_in_every_layer():
    pairs = 2 * 6 * 100  # layers, rows, context
    assert LLAMA.work("bfloat16", 2, 100, 3).context_flops == pairs * 4 * 3 * 4  # heads, size, two products


def test_tokens_of_a_chain_attend_to_themselves_and_those_before():
    pairs = 2 * 2 * (1 + 2 + 3)  # layers, sequences, rows
    assert LLAMA.work("bfloat16", 2, 100, 3).causal_flops == pairs * 4 * 3 * 4


def test_the_cache_of_a_token_is_a_key_and_a_value_per_head_and_layer():
    assert LLAMA.kv_bytes_per_token("bfloat16") == 2 * 2 * 2 * 3 * 2
    work = LLAMA.work("bfloat16", 5, 100, 3)
    assert (work.cache_read_bytes, work.cache_write_bytes) == (5 * 100 * 48, 5 * 3 * 48)


def test_weights_are_read_once_whatever_the_batch_and_token_table_only_where_it_is_the_head():
    stored = LLAMA.parameters - LLAMA.embedding_parameters
    assert LLAMA.work("float32", 1, 0, 1).weight_bytes == LLAMA.work("float32", 9, 0, 7).weight_bytes == 4 * stored


def test_logits_of_the_last_token_alone_cost_one_row_per_sequence():
    every, last = LLAMA.work("float32", 3, 0, 7), LLAMA.work("float32", 3, 0, 7, outputs=1)
    assert every.logit_bytes == 7 * last.logit_bytes == 7 * 3 * 50 * 4
    assert every.matmul_flops - last.matmul_flops == 3 * 6 * 2 * 50 * 8


def test_a_window_bounds_what_its_layers_read():
    config = written(built("Gemma2", SIZES | HEAD | {"sliding_window": 16}).config)
    architecture = architecture_of(config)  # layers 0 and 2 see 16 tokens, layer 1 sees all
    assert architecture.work("float32", 1, 40, 1).cache_read_bytes == 4 * (16 + 40 + 16) * 2 * 2 * 10


def test_few_rows_touch_few_experts_and_many_rows_touch_all():
    config = written(built("Mixtral", SIZES | {"num_local_experts": 8, "num_experts_per_tok": 2}).config)
    architecture = architecture_of(config)
    one, many = architecture.work("int8", 1, 0, 1), architecture.work("int8", 64, 0, 64)
    expert = 3 * 24 * 40
    assert one.weight_bytes == pytest.approx(one.least_weight_bytes)
    assert many.weight_bytes - one.weight_bytes == pytest.approx(3 * 6 * expert)
    assert many.least_weight_bytes == one.least_weight_bytes


def test_every_token_goes_to_shared_experts_and_through_dense_layers():
    config = written(built("DeepseekV3", SIZES | LATENT | CHOSEN | DENSE | {"q_lora_rank": 9}).config)
    architecture = architecture_of(config)
    one, many = architecture.work("int8", 1, 0, 1), architecture.work("int8", 64, 0, 64)
    expert, shared, dense = 3 * 24 * 17, 3 * 24 * 34, 3 * 24 * 40  # of the 3 layers the first is dense
    attention = 24 * 9 + 9 * 4 * 10 + 24 * 12 + 8 * 4 * 11 + 4 * 5 * 24
    multiplied = 3 * attention + dense + 2 * (shared + 2 * expert + 24 * 4) + 48 * 24
    assert one.matmul_flops == 2 * multiplied
    assert one.weight_bytes == pytest.approx(multiplied + 3 * architecture.layer_vectors + 24)
    assert many.weight_bytes - one.weight_bytes == pytest.approx(2 * 2 * expert)
    assert architecture.kv_bytes_per_token("int8") == 3 * (8 + 4)


@pytest.mark.parametrize(
    ("told", "lacking"),
    [({"n_routed_experts": None}, "num_local_experts"), ({"num_experts_per_tok": None}, "num_experts_per_tok")],
)
def test_a_model_with_experts_that_does_not_say_how_many_is_refused(told, lacking):
    config = written(built("DeepseekV3", SIZES | LATENT | CHOSEN | DENSE).config) | told
    with pytest.raises(ModelError, match=f"lacks {lacking}"):
        architecture_of(config | {"num_experts": None, "num_local_experts": None})


@pytest.mark.parametrize("fields", [{"layers": 0}, {"experts": 4, "experts_per_token": 5}, {"windowed_layers": 1}])
def test_an_impossible_architecture_cannot_be_made(fields):
    from dataclasses import replace

    with pytest.raises(ModelError, match=r"mend config\.json"):
        replace(LLAMA, **fields)


def test_an_unknown_number_format_is_refused():
    with pytest.raises(ModelError, match="'int3'"):
        LLAMA.weight_bytes("int3")


@pytest.mark.parametrize(("field", "kind"), [("rope_scaling", "type"), ("rope_parameters", "rope_type")])
@pytest.mark.parametrize(("way", "longest"), [("yarn", 128), ("longrope", 32), ("linear", 64)])
def test_the_longest_text_is_what_its_angles_reach(field: str, kind: str, way: str, longest: int) -> None:
    config = written(transformers.Qwen2Config(**SIZES))
    config.pop("rope_parameters", None)
    config[field] = {kind: way, "factor": 4.0, "original_max_position_embeddings": 32}
    assert architecture_of(config).longest_context == longest


def test_a_length_that_is_stretched_from_no_told_one_is_what_the_model_reaches() -> None:
    config = {**written(transformers.Qwen2Config(**SIZES)), "rope_scaling": {"type": "yarn", "factor": 4.0}}
    config.pop("rope_parameters", None)
    loaded = transformers.Qwen2Config(**config)
    assert architecture_of(config).longest_context == longest_context_of(loaded) == 256
