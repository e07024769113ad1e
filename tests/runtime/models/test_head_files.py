"""Drafters whose files ask for more than is computed are refused before anything is loaded, by what asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import spectune
from spectune.cli import main
from spectune.errors import ModelError
from spectune.profiler.identity import identify
from spectune.profiler.records.configuration import architecture_of
from spectune.runtime.models.config_file import OWN
from spectune.runtime.models.drafter import load_drafter, load_head, require_computable, require_drafter_of
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import head_shape
from spectune.runtime.models.layout import lay_out
from spectune.runtime.models.lean import LeanModel
from spectune.tuning.parts import drafter_parts

from ...support.drafter_folders import KINDS, Kind, save_drafter
from ...support.tiny_heads import save_head
from ...support.tiny_models import tiny_llama

DEMO = Path(spectune.__file__).parent / "demo" / "models"
TARGET = DEMO / "target"  # of 8 layers and 384 numbers
LAYER = "midlayer."
LEFT_OUT = {"eagle": ("fc.bias", "fc.weight")}  # without the bias it is a head, without the weight none
Tensors = dict[str, Tensor]


def head(
    folder: Path,
    said: Mapping[str, object] | None = None,
    without: tuple[str, ...] = (),
    change: Callable[[Tensors], object] = lambda tensors: None,
    source: str = "eagle3",
) -> Path:
    """Write the demo's head with other keys and tensors; None for a tensor or key leaves it out."""
    folder.mkdir(exist_ok=True)
    tensors, config = load_file(DEMO / source / "model.safetensors"), written(DEMO / source)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    kept = {key: value for key, value in {**config, **(said or {})}.items() if key not in without}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def written(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def refusal(folder: Path, target: Path = TARGET) -> str:
    with pytest.raises(ModelError) as refused:
        require_computable(folder, str(target))
    return str(refused.value)


@pytest.mark.parametrize("source", ["eagle3", "medusa", "ctc", "specformer", "exit", "recycling"])
def test_the_demo_s_drafters_are_computed_as_they_say(source: str) -> None:
    require_drafter_of(DEMO / source, identify(TARGET))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fc_norm", True),
        ("norm_output", True),
        ("norm_before_fc", True),
        ("norm_before_residual", True),
        ("use_aux_hidden_state", False),
        ("hidden_act", "gelu"),
        ("hidden_act", "relu2"),
        ("activation_function", "gelu_new"),
        ("partial_rotary_factor", 0.5),
        ("num_hidden_layers", 2),
        ("num_hidden_layers", 40),
        ("parallel_drafting", True),
        ("ptd_token_id", 7),
        ("mask_token_id", 7),
        ("architectures", ["Eagle3DeepseekV2ForCausalLM"]),
        ("architectures", ["LlamaForCausalLMEagle3", "Other"]),
        ("architectures", "Qwen3Eagle3Model"),
        ("model_type", "gemma2"),
        ("add_para_norm", True),
        ("use_qk_norm", True),
        ("qk_layernorm", True),
        ("logit_scale", 0.25),
        ("residual_multiplier", 0.22),
        ("attention_multiplier", 0.1),
        ("embedding_multiplier", 12),
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 50.0),
        ("query_pre_attn_scalar", 256),
        ("sliding_window", 512),
        ("layer_types", ["sliding_attention"]),
        ("num_experts", 8),
        ("num_local_experts", 8),
        ("q_lora_rank", 64),
        ("is_causal", False),
        ("mlp_bias", True),
        ("attention_bias", True),
        ("qkv_bias", True),
        ("rope_interleave", True),
        ("target_layer_ids", [1, 3, 5]),
        ("num_aux_hidden_states", 5),
        ("target_hidden_size", 4096),
        ("quantization_config", {"quant_method": "modelopt", "quant_algo": "FP8"}),
        ("quantization", {"bits": 4, "group_size": 64}),
        ("attnOutputGate", True),
        ("surprise", 3),
        ("eagle_flavour", "bitter"),
    ],
)
def test_keys_that_change_the_computation_are_refused_by_name_and_value(
    tmp_path: Path, key: str, value: object
) -> None:
    shown = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    assert f"{key}: {shown}" in refusal(head(tmp_path / "head", {key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_aux_hidden_state", False),
        ("use_mtp_layernorm", True),
        ("num_hidden_layers", 8),
        ("use_last_layernorm", False),
        ("use_input_layernorm_in_first_layer", False),
        ("parallel_draft_step", 4),
        ("next_layer_regular", False),
        ("fc_norm", True),
    ],
)
def test_keys_of_eagle_config_are_read_as_those_at_the_top(tmp_path: Path, key: str, value: object) -> None:
    refused = refusal(head(tmp_path / "head", {"eagle_config": {key: value}}))
    assert f"eagle_config.{key}: {str(value).lower()}" in refused


@pytest.mark.parametrize("layers", [1, 8, None])
def test_a_head_counts_its_one_layer_or_those_of_its_target(tmp_path: Path, layers: int | None) -> None:
    """A config.json copied from the target's says its layers (40 of yuhuili/EAGLE3-Vicuna1.3-13B)."""
    said = {} if layers is None else {"num_hidden_layers": layers}
    folder = head(tmp_path / "head", said, without=() if said else ("num_hidden_layers",))
    require_drafter_of(folder, identify(TARGET))
    target = demo_target()
    drafted = [whole_text_logits(load_head(each, target)) for each in (DEMO / "eagle3", folder)]
    torch.testing.assert_close(drafted[0], drafted[1], rtol=0, atol=0)


def test_kinds_of_the_target_s_layers_may_be_copied_with_their_count(tmp_path: Path) -> None:
    said = {"num_hidden_layers": 8, "layer_types": ["full_attention"] * 8, "max_window_layers": 8}
    require_computable(head(tmp_path / "head", said), str(TARGET))
    said["layer_types"] = ["full_attention", "sliding_attention"] * 4
    assert "only full_attention is computed" in refusal(head(tmp_path / "other", said))


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"rope_theta": 5e5}, "rope_parameters.rope_theta: 10000.0 and rope_theta: 500000.0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "and rope_scaling: {'rope_type': 'linear'"),
        ({"rope_scaling": {"type": "default", "rope_theta": 2e4}}, "and rope_scaling.rope_theta: 20000.0"),
        ({"rope_theta": [1]}, "and rope_theta: [1] in its config.json"),
        ({"eagle_config": [1]}, "eagle_config: [1] in its config.json, where a dictionary belongs"),
    ],
)
def test_what_is_said_twice_or_in_another_form_is_refused(
    tmp_path: Path, said: Mapping[str, object], named: str
) -> None:
    assert named in refusal(head(tmp_path / "head", said))


def test_positions_that_are_said_twice_alike_are_computed(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    said = {"rope_theta": 10000, "rope_parameters": rope, "rope_scaling": rope}
    config = head_shape(head(tmp_path / "head", said)).config
    assert "'factor': 4.0" in str(config.rope_parameters)


@pytest.mark.parametrize("layers", [2, 7, 40])
def test_another_count_of_layers_is_refused_with_the_rule(tmp_path: Path, layers: int) -> None:
    folder = head(tmp_path / "head", {"num_hidden_layers": layers})
    assert "1 belongs there, or 8 where it was copied from this target's" in refusal(folder)
    with pytest.raises(ModelError, match=f"num_hidden_layers: {layers}"):
        load_drafter(str(folder), demo_target(), dtype="float32")


@pytest.mark.parametrize("name", ["layers.1.mlp.up_proj.weight", "midlayer.1.mlp.up_proj.weight"])
def test_tensors_of_a_second_layer_are_refused_whatever_the_count(tmp_path: Path, name: str) -> None:
    for layers in (1, 2, 8):
        said = {"num_hidden_layers": layers}
        folder = head(tmp_path / str(layers), said, change=lambda held: held.update({name: torch.ones(512, 384)}))
        assert (name if layers != 2 else "num_hidden_layers: 2") in refusal(folder)


@pytest.mark.parametrize("value", [0, True, "8", 1.0])
def test_a_count_of_layers_is_a_count(tmp_path: Path, value: object) -> None:
    assert f"num_hidden_layers: {value}" in refusal(head(tmp_path / "head", {"num_hidden_layers": value}))


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        ({"rope_type": "wow", "rope_theta": 1e4}, "rope_type: wow"),
        ({"type": "wow"}, "rope_type: wow"),
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type: dynamic"),
        ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "rope_type: longrope"),
        ({"rope_type": "mrope", "mrope_section": [16, 24, 24]}, "rope_type: mrope"),
        ({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        ({"rope_type": "linear", "rope_theta": 1e4}, "describes no layer"),
        ("wow", "where a dictionary belongs"),
    ],
)
@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_positions_that_are_not_computed_are_refused(tmp_path: Path, key: str, rope: object, named: str) -> None:
    without = ("rope_parameters",) if key == "rope_scaling" else ()
    folder = head(tmp_path / "head", {key: rope}, without)
    assert named in refusal(folder)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("hidden_size", None, "lacks hidden_size"),
        ("num_attention_heads", None, "lacks num_attention_heads"),
        ("intermediate_size", None, "lacks intermediate_size"),
        ("vocab_size", None, "lacks vocab_size"),
        ("hidden_size", 768, "hidden_size: 768"),
        ("hidden_size", "384", "hidden_size: 384"),
        ("num_key_value_heads", None, "k_proj.weight is 128 x 768"),
        ("num_key_value_heads", 4, "which do not divide"),
        ("num_key_value_heads", 0, "num_key_value_heads: 0"),
        ("head_dim", 32, "q_proj.weight is 384 x 768"),
        ("intermediate_size", 640, "gate_proj.weight is 512 x 384"),
        ("draft_vocab_size", 500, "lm_head.weight is 1024 x 384"),
        ("rms_norm_eps", None, "rms_norm_eps: None"),
        (OWN, {"reads": [2, 4, 9]}, "after 2, 4, 9 layers and the target has 8"),
        (OWN, {"reads": [2, 4]}, "fc.weight is 384 x 1152"),
        (OWN, {"reads": [2, 4, 7], "activation": "gelu"}, "spectune.activation"),
        (OWN, {"reads": "2, 4, 7"}, "spectune.reads"),
        (OWN, [], "no dictionary"),
    ],
)
def test_sizes_that_the_tensors_do_not_have_are_one_error(tmp_path: Path, key: str, value: object, named: str) -> None:
    folder = head(tmp_path / "head", {key: value})
    assert named in refusal(folder)
    if value is None and key != "rms_norm_eps":  # a key that is left out means the same
        assert named in refusal(head(tmp_path / "other", without=(key,)))


@pytest.mark.parametrize(
    "name",
    [
        f"{LAYER}self_attn.q_norm.weight",
        f"{LAYER}self_attn.k_norm.weight",
        f"{LAYER}self_attn.o_proj.bias",
        f"{LAYER}mlp.up_proj.bias",
        f"{LAYER}mlp.gate_proj.bias",
        f"{LAYER}mlp.down_proj.bias",
        "lm_head.bias",
        "extra.weight",
        "midlayer.1.mlp.up_proj.weight",
        "layers.1.self_attn.q_proj.weight",
        "fc.weight_scale",
        "fc_norm.0.weight",
        "input_norm.weight",
        "parallel_draft_heads.0.lm_head.weight",
    ],
)
def test_a_tensor_that_is_not_computed_with_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = head(tmp_path / "head", change=lambda tensors: tensors.update({name: torch.ones(384)}))
    assert f"the tensor {name}, which spectune does not compute with" in refusal(folder)


@pytest.mark.parametrize("one", ["q", "k", "v"])
def test_a_single_bias_is_refused_and_all_three_are_read(tmp_path: Path, one: str) -> None:
    sizes = {"q": 384, "k": 128, "v": 128}
    all_three = {f"{LAYER}self_attn.{name}_proj.bias": torch.ones(size) for name, size in sizes.items()}
    alone = f"{LAYER}self_attn.{one}_proj.bias"
    folder = head(tmp_path / "head", change=lambda tensors: tensors.update({alone: all_three[alone]}))
    assert f"holds {alone} and lacks" in refusal(folder)
    require_computable(head(tmp_path / "all", change=lambda tensors: tensors.update(all_three)), str(TARGET))


def test_what_follows_from_the_configuration_may_lie_there_too(tmp_path: Path) -> None:
    derived = {f"{LAYER}self_attn.rotary_emb.inv_freq": torch.ones(32)}
    require_computable(head(tmp_path / "head", change=lambda tensors: tensors.update(derived)), str(TARGET))


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        (f"{LAYER}mlp.down_proj.weight", lambda one: one[:, :256]),
        (f"{LAYER}mlp.up_proj.weight", lambda one: one[:, :256]),
        (f"{LAYER}self_attn.q_proj.weight", lambda one: one[:, :384]),
        (f"{LAYER}self_attn.o_proj.weight", lambda one: one[:192]),
        (f"{LAYER}hidden_norm.weight", lambda one: one[:192]),
        (f"{LAYER}post_attention_layernorm.weight", lambda one: one[:1]),
        ("lm_head.weight", lambda one: one[:, :192]),
        ("lm_head.weight", lambda one: one[:1000]),
        ("norm.weight", lambda one: one[:192]),
        ("norm.weight", lambda one: one[None]),
        ("fc.weight", lambda one: one[:, :768]),
        ("d2t", lambda one: one[:1000]),
        ("d2t", lambda one: one.float()),
        ("t2d", lambda one: one[:4000]),
        ("t2d", lambda one: one.float()),
    ],
)
def test_a_tensor_of_another_shape_is_refused_by_name(
    tmp_path: Path, name: str, cut: Callable[[Tensor], Tensor]
) -> None:
    folder = head(tmp_path / "head", change=lambda tensors: tensors.update({name: cut(tensors[name])}))
    assert f"{name} is " in refusal(folder)


def test_a_table_of_embeddings_of_its_own_has_the_target_s_rows(tmp_path: Path) -> None:
    for rows, is_refused in ((4096, False), (4095, True)):
        folder = head(tmp_path / str(rows))
        save_file({"embed_tokens.weight": torch.ones(rows, 384)}, folder / "table.safetensors")
        if is_refused:
            assert "embed_tokens.weight is 4095 x 384" in refusal(folder)
        else:
            require_computable(folder, str(TARGET))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8])
@pytest.mark.parametrize("name", [f"{LAYER}mlp.up_proj.weight", "fc.weight", "norm.weight"])
def test_numbers_that_need_scales_are_refused_by_tensor(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    folder = head(tmp_path / "head", change=lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    assert f"{name} is stored as" in refusal(folder)


def test_float8_with_scales_beside_is_refused_by_tensor(tmp_path: Path) -> None:
    def quantise(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            tensors[f"{name}_scale"] = torch.ones(1)
            tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    assert f"{LAYER}mlp.down_proj.weight_scale" in refusal(head(tmp_path / "head", change=quantise))


def repeated(tensors: Tensors) -> None:
    tensors["d2t"][5] = tensors["d2t"][4] - 1


def emptied(tensors: Tensors) -> None:
    tensors["d2t"].zero_()


def emptied_alone(tensors: Tensors) -> None:
    emptied(tensors)
    del tensors["t2d"]


def contradicted(tensors: Tensors) -> None:
    tensors["t2d"] = tensors["t2d"].roll(1)


def beyond(tensors: Tensors) -> None:
    tensors["d2t"][-1] = 4096


def before(tensors: Tensors) -> None:
    tensors["d2t"][0] = -1


def unmapped(tensors: Tensors) -> None:
    del tensors["d2t"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (repeated, "to 1023 ids by d2t; each must have its own"),
        (emptied, "d2t maps to 1024 ids and t2d names 1024, which are not the same"),
        (emptied_alone, "d2t of 1024 zeros"),
        (contradicted, "which are not the same"),
        (beyond, "by d2t, and the target has 4096 tokens"),
        (before, "ids from -1 to"),
        (unmapped, "no d2t says which"),
    ],
)
def test_ids_that_a_head_drafts_are_distinct_and_told_once(
    tmp_path: Path, change: Callable[[Tensors], None], named: str
) -> None:
    folder = head(tmp_path / "head", change=change)
    assert named in refusal(folder)
    with pytest.raises(ModelError):
        load_drafter(str(folder), demo_target(), dtype="float32")


@cache
def demo_target() -> LeanModel:
    return LeanModel(AutoModelForCausalLM.from_pretrained(TARGET))


@pytest.mark.parametrize(
    ("said", "reads"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 7]}, (2, 4, 7)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 7], "use_aux_hidden_state": True}}, (2, 4, 7)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}}, (2, 4, 7)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, (2, 4, 5)),
        ({"eagle_config": None}, (2, 4, 5)),
        ({}, (2, 4, 5)),
    ],
)
def test_the_layers_that_a_public_head_names_are_read(
    tmp_path: Path, said: Mapping[str, object], reads: tuple[int, ...]
) -> None:
    folder = head(tmp_path / "head", said, without=(OWN,))
    assert head_shape(folder).reads_of(8) == reads
    require_computable(folder, str(TARGET))


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}, "engines count in different ways"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}, "after 2, 4, 9 layers and the target has 8"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4]}, "fc.weight is 384 x 1152"),
        ({"eagle_aux_hidden_state_layer_ids": "2, 4, 7"}, "where a list of layers belongs"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, -1, 7]}}, "where a list of layers belongs"),
    ],
)
def test_layers_that_cannot_be_read_are_refused(tmp_path: Path, said: Mapping[str, object], named: str) -> None:
    assert named in refusal(head(tmp_path / "head", said, without=(OWN,)))


def test_layers_named_twice_must_agree(tmp_path: Path) -> None:
    require_computable(head(tmp_path / "same", {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]}), str(TARGET))
    other = head(tmp_path / "other", {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]})
    assert "leave the wrong one out" in refusal(other)


PUBLIC: Mapping[str, Mapping[str, object]] = {
    "SafeAILab": {
        "architectures": ["LlamaForCausalLMEagle3"], "bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 0,
        "max_position_embeddings": 2048, "torch_dtype": "float16", "transformers_version": "4.28.1", "use_cache": True,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": False, "initializer_range": 0.02,
    },
    "SpecForge": {
        "attention_bias": False, "attention_dropout": 0.0, "head_dim": 64, "max_window_layers": 48,
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
        "target_model_type": "qwen2", "pretraining_tp": 1, "decoder_sparse_step": 1, "torch_dtype": "bfloat16",
    },
    "a window that is not used": {"sliding_window": 512, "use_sliding_window": False, "model_type": "llama"},
    "a window beyond all positions": {"sliding_window": 131072},
    "AngelSlim": {"architectures": ["Eagle3LlamaForCausalLM"], "max_window_layers": 36, "sliding_window": None},
    "ModelOpt": {
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [1, 3, 6], "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
            "next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
        },
        "eos_token_id": [128001, 128008, 128009], "mlp_bias": False, "pretraining_tp": 1,
        "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    },
    "flags that are off": {
        "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False,
        "parallel_drafting": False, "use_qk_norm": False, "num_experts": 0, "partial_rotary_factor": 1.0,
        "logit_scale": 1.0, "quantization_config": None, "qkv_bias": False,
    },
    "who made it": {
        "_name_or_path": "x", "auto_map": {"": "x.Y"}, "unsloth_version": "2025.1", "ttt_length": 7,
        "hidden_dropout": 0.1, "id2label": {"0": "A"}, "top_p": 0.9, "embed_requires_grad": True, "dtype": "bfloat16",
        "target_hidden_size": 384, "num_aux_hidden_states": 3, "layer_types": ["full_attention"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_what_public_heads_say_passes(tmp_path: Path, name: str) -> None:
    without = ("rope_parameters",) if "rope_scaling" in PUBLIC[name] else ()
    require_computable(head(tmp_path / "head", PUBLIC[name], without), str(TARGET))


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "LlamaForCausalLMEagle", "Qwen2ForCausalLM", "MistralForCausalLM"]
)
def test_a_head_of_the_first_form_may_be_named_after_its_target(tmp_path: Path, architecture: str) -> None:
    source = tiny_llama(layers=4, seed=0)
    source.save_pretrained(tmp_path / "target")
    folder = save_head(tmp_path / "head", "eagle", source, (4,))
    (folder / "config.json").write_text(json.dumps({**written(folder), "architectures": [architecture]}))
    require_computable(folder, str(tmp_path / "target"))


def as_exported(tensors: Tensors) -> None:
    """Name the layer as ModelOpt and vLLM do."""
    for name in [name for name in tensors if name.startswith(LAYER)]:
        tensors[name.replace(LAYER, "layers.0.")] = tensors.pop(name)


def test_a_layer_by_its_other_name_is_the_same_head(tmp_path: Path) -> None:
    target = demo_target()
    said = []
    for folder in (head(tmp_path / "one"), head(tmp_path / "other", change=as_exported)):
        require_computable(folder, str(TARGET))
        model = load_head(folder, target)
        parts = drafter_parts(folder, architecture_of(written(TARGET)))
        said.append((whole_text_logits(model), sorted(parts.sizes) if parts else None))
    torch.testing.assert_close(said[0][0], said[1][0], rtol=0, atol=0)
    assert said[0][1] == said[1][1]


def whole_text_logits(model: EagleHead) -> Tensor:
    text = np.array([[3, 1, 4, 1, 5, 9, 2, 6]])
    step = lay_out(text, np.arange(8), [0], np.tri(8, dtype=np.bool_)[None], dtype=model.dtype, device=model.device)
    return model.read(model.along(text[0].tolist())[None], step, model.new_cache(1, 8))


SPECULATORS: Mapping[str, object] = {
    "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "norm_before_residual": True,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "target"}},
    "transformer_layer_config": {"hidden_size": 384, "model_type": "llama", "vocab_size": 4096},
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (SPECULATORS, "speculators (eagle3)"),
        ({"speculators_model_type": "dflash", "architectures": ["DFlashDraftModel"]}, "speculators (dflash)"),
        ({"speculators_config": {"algorithm": "peagle"}}, "speculators (peagle)"),
        ({"speculators_config": {"verifier": {}}, "speculators_model_type": "eagle"}, "speculators (eagle)"),
        ({"speculators_version": "0.3.0", "transformer_layer_config": {"num_hidden_layers": 1}}, "speculators"),
        ({"transformer_layer_config": {"hidden_size": 384, "model_type": "llama"}}, "speculators"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash of another architecture"),
        ({"medusa_num_heads": 5, "medusa_num_layers": 1}, "Medusa with language-model heads of its own"),
        ({"architectures": ["PEagleDraftModel"]}, "P-EAGLE"),
    ],
)
@pytest.mark.parametrize("has_tensors", [True, False])
def test_other_projects_formats_are_named(
    tmp_path: Path, said: Mapping[str, object], named: str, has_tensors: bool
) -> None:
    folder = head(tmp_path / "head", said, without=(OWN, "model_type"))
    if not has_tensors:
        (folder / "model.safetensors").unlink()
    said_of_it = refusal(folder)
    assert f"is in the format {named}, which spectune does not read; supported are" in said_of_it
    assert said_of_it.endswith("; give one of these")
    with pytest.raises(ModelError, match="is in the format"):
        require_drafter_of(folder, identify(TARGET))


def test_a_head_in_pickled_files_is_named(tmp_path: Path) -> None:
    folder = head(tmp_path / "head")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "holds pytorch_model.bin and no safetensors" in refusal(folder)


def test_a_head_without_what_joins_states_is_named(tmp_path: Path) -> None:
    folder = head(tmp_path / "head", change=lambda tensors: tensors.pop("fc.weight"))
    assert "lacks the tensor fc.weight" in refusal(folder)


def test_two_files_with_one_tensor_are_refused(tmp_path: Path) -> None:
    folder = head(tmp_path / "head")
    save_file({"norm.weight": torch.ones(384)}, folder / "other.safetensors")
    assert "hold the tensor norm.weight" in refusal(folder)


@pytest.fixture(scope="module")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "target"
    tiny_llama(layers=4, seed=0).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_drafter_refuses_tensors_that_it_does_not_read(
    tmp_path: Path, kind: Kind, tiny_target: Path
) -> None:
    source = tiny_llama(layers=4, seed=0)
    folder = save_drafter(kind, source, tmp_path / kind)
    require_computable(folder, str(tiny_target))
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "extra.weight": torch.ones(3)}, folder / "model.safetensors")
    assert "the tensor extra.weight" in refusal(folder, tiny_target)
    if kind == "recycling":
        return
    with pytest.raises(ModelError, match=r"the tensor extra\.weight"):
        load_drafter(str(folder), LeanModel(source), dtype="float32")
    for name in tensors:
        if name == "d2t":
            continue
        save_file({**tensors, name: tensors[name][:-1].contiguous()}, folder / "model.safetensors")
        assert f"{name} is " in refusal(folder, tiny_target)
        save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, folder / "model.safetensors")
        assert f"{name} is stored as F8_E4M3" in refusal(folder, tiny_target)
        if name in LEFT_OUT.get(kind, ()):
            continue
        save_file({key: one for key, one in tensors.items() if key != name}, folder / "model.safetensors")
        assert name in refusal(folder, tiny_target)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("eagle")])
@pytest.mark.parametrize("said", [{"hidden_act": "gelu"}, {"norm_output": True}, {"architectures": ["Other"]}])
def test_drafters_trained_here_say_nothing_else(
    tmp_path: Path, kind: Kind, said: Mapping[str, object], tiny_target: Path
) -> None:
    folder = save_drafter(kind, tiny_llama(layers=4, seed=0), tmp_path / kind)
    own = written(folder)
    (folder / "config.json").write_text(json.dumps({**own, **said}))
    assert f"says {next(iter(said))}" in refusal(folder, tiny_target)
    (folder / "config.json").write_text(json.dumps({**own, OWN: {**own[OWN], "activation": "gelu"}}))
    assert "activation" in refusal(folder, tiny_target)
    (folder / "config.json").write_text(json.dumps({**own, "torch_dtype": "bfloat16", "use_cache": True}))
    require_computable(folder, str(tiny_target))


def test_a_target_whose_states_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert "is of type gpt2; leave the drafter out" in refusal(DEMO / "medusa", tmp_path)


REFUSED: Mapping[str, Mapping[str, object]] = {
    "fc_norm: true": {"fc_norm": True},
    "rope_type: wow": {"rope_parameters": {"rope_type": "wow"}},
    "speculators (eagle3)": SPECULATORS,
}


@pytest.mark.parametrize("named", REFUSED)
@pytest.mark.parametrize("options", [("--dry-run",), (), ("--latency-only", "--context", "32")])
def test_profile_refuses_before_anything_is_measured(
    tmp_path: Path, named: str, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = head(tmp_path / "head", REFUSED[named])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("def main():", "import os")))
    alone = "--latency-only" in options
    texts = () if alone else ("--prompts", str(prompts), "--batch", "1")
    models = ("--target", str(TARGET), "--drafter", f"head={folder}")
    store = ("--store", str(tmp_path / "store.db"))
    told = CliRunner().invoke(main, ["profile", *models, *texts, *store, *options])
    assert told.exit_code == 1
    assert named in told.output and "Traceback" not in told.output
