"""The architecture that a Hugging Face config.json describes, without building the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ModelError
from .architecture import Architecture, LatentAttention
from .quantisation import stored_weights

Config = Mapping[str, Any]  # JSON values, as config.json holds them


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTypeTraits:
    """What a model_type implies beyond the numbers in its config.json."""

    norms: int = 2  # per layer, of hidden size
    has_norm_bias: bool = False
    has_head_norms: bool = False  # one norm for queries and one for keys, of head size
    tells_bias: bool = False  # the file has attention_bias and mlp_bias; the next three hold where it is silent
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    is_gated: bool = True
    is_tied: bool = False  # where the file does not tell
    has_experts: bool = False
    has_dense_layers: bool = False  # some layers may have one MLP instead of experts; the file tells which
    has_latent_attention: bool = False
    is_biased_by_expert: bool = False  # experts and router have biases, heads a sink
    inner: str = "intermediate_size"  # the field with the size of the MLP, or of one expert
    dense_inner: str = "intermediate_size"  # of the MLP of layers without experts
    needs_head_dim: bool = False  # its head size does not follow from the others


SOME_DENSE: dict[str, Any] = {"has_experts": True, "has_dense_layers": True, "inner": "moe_intermediate_size"}
FAMILIES: Mapping[str, ModelTypeTraits] = {
    "llama": ModelTypeTraits(tells_bias=True),
    "mistral": ModelTypeTraits(),
    "phi3": ModelTypeTraits(),
    "qwen2": ModelTypeTraits(has_qkv_bias=True),
    "qwen3": ModelTypeTraits(has_head_norms=True, tells_bias=True, needs_head_dim=True),
    "gemma": ModelTypeTraits(is_tied=True, tells_bias=True, needs_head_dim=True),
    "gemma2": ModelTypeTraits(norms=4, is_tied=True, tells_bias=True, needs_head_dim=True),
    "gemma3_text": ModelTypeTraits(norms=4, has_head_norms=True, is_tied=True, tells_bias=True, needs_head_dim=True),
    "gpt2": ModelTypeTraits(
        has_norm_bias=True,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        is_gated=False,
        is_tied=True,
    ),
    "gpt_neox": ModelTypeTraits(
        has_norm_bias=True,
        tells_bias=True,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        is_gated=False,
    ),
    "mixtral": ModelTypeTraits(has_experts=True),
    "granitemoe": ModelTypeTraits(tells_bias=True, has_experts=True),
    "olmoe": ModelTypeTraits(has_experts=True, tells_bias=True),
    "gpt_oss": ModelTypeTraits(
        tells_bias=True, has_qkv_bias=True, has_output_bias=True, has_experts=True, is_biased_by_expert=True
    ),
    "llama4_text": ModelTypeTraits(has_experts=True, has_dense_layers=True, dense_inner="intermediate_size_mlp"),
    "qwen2_moe": ModelTypeTraits(has_qkv_bias=True, **SOME_DENSE),
    "qwen3_moe": ModelTypeTraits(has_head_norms=True, tells_bias=True, **SOME_DENSE),
    "glm4_moe": ModelTypeTraits(tells_bias=True, **SOME_DENSE),
    "dots1": ModelTypeTraits(has_head_norms=True, tells_bias=True, **SOME_DENSE),
    "deepseek": ModelTypeTraits(**SOME_DENSE),
    "deepseek_v2": ModelTypeTraits(has_latent_attention=True, **SOME_DENSE),
    "deepseek_v3": ModelTypeTraits(has_latent_attention=True, **SOME_DENSE),
    "kimi_k2": ModelTypeTraits(has_latent_attention=True, **SOME_DENSE),
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")  # names of one field
CHOSEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_k", "moe_topk")  # likewise
LATENT = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "learned_positions": "n_positions",
}


def architecture_of(config: Config) -> Architecture:
    """Return the architecture that a parsed config.json describes; of several modalities its text_config counts.

    ModelError where the family is not known, its layers differ in an unknown way, or fields are missing (named).
    """
    text = config.get("text_config", config)
    family = FAMILIES.get(text.get("model_type", ""))
    if family is None:
        raise ModelError(f"model_type is {text.get('model_type')!r}; known are {', '.join(sorted(FAMILIES))}")
    if text["model_type"] == "gpt2":
        text = _from_gpt2(text)
    _require_fields(text, family)
    if not family.has_dense_layers and (text.get("mlp_only_layers") or text.get("decoder_sparse_step", 1) != 1):
        raise ModelError("some layers have experts and some have none, which is not supported; choose another model")
    stored = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    found = _architecture(text, family, stored if isinstance(stored, str) else "")
    return replace(found, stored=stored_weights(found, config))


def longest_text(positions: int, ropes: Iterable[Config]) -> int:
    """Return how many tokens a text may have, from max_position_embeddings and the RoPE settings, per kind of layer.

    "longrope" turns all positions, cached keys too, by other angles beyond its original length: that is its longest.
    "yarn" stretches that by a factor; without one, max_position_embeddings count as it, as transformers reads such
    files.
    """
    longest = positions
    for rope in ropes:
        kind, original = rope.get("rope_type", rope.get("type")), rope.get("original_max_position_embeddings")
        if kind == "longrope" and original:
            longest = min(longest, int(original))
        elif kind == "yarn":
            longest = max(longest, int((original or positions) * (rope.get("factor") or 1.0)))
    return longest


def _ropes(text: Config) -> list[Config]:
    """Return what a file says of angles, under either name that it has had."""
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    parts: list[Config] = [part for part in (rope, *rope.values()) if isinstance(part, dict)]
    original = text.get("original_max_position_embeddings")
    return parts if original is None else [{"original_max_position_embeddings": original, **part} for part in parts]


def _from_gpt2(text: Config) -> Config:
    renamed = {name: text[old] for name, old in GPT2_NAMES.items() if text.get(old) is not None}
    inner = {"intermediate_size": 4 * text["n_embd"]} if "n_embd" in text else {}
    return {**text, **inner, **renamed}


def _require_fields(text: Config, family: ModelTypeTraits) -> None:
    needed = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", family.inner]
    needed += ["head_dim"] if family.needs_head_dim else []
    needed += LATENT if family.has_latent_attention else []
    if _experts(text) and _dense_layers(text, family):
        needed += [family.dense_inner]
    needed += ["learned_positions"] if text["model_type"] == "gpt2" else []
    missing = [name for name in needed if not isinstance(text.get(name), int)]
    for same in (EXPERTS, CHOSEN) if family.has_experts else ():
        missing += [] if _first_of(text, same) else [same[0]]
    if missing:
        names = GPT2_NAMES if text["model_type"] == "gpt2" else {}
        told = ", ".join(names.get(name, name) for name in missing)
        raise ModelError(f"config.json of a {text['model_type']} lacks {told}; take the file that lies with the model")


def _architecture(text: Config, family: ModelTypeTraits, stored_dtype: str) -> Architecture:
    heads, hidden, inner = text["num_attention_heads"], text["hidden_size"], text[family.inner]
    dense = _dense_layers(text, family)
    head_dim = text.get("head_dim") or hidden // heads
    kv_heads = text.get("num_key_value_heads") or heads
    norm = hidden * (2 if family.has_norm_bias else 1)
    windowed = _windowed_layers(text)
    architecture = Architecture(
        family=text["model_type"],
        layers=text["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=inner,
        vocabulary=text["vocab_size"],
        is_tied=bool(text.get("tie_word_embeddings", family.is_tied)),
        is_gated=family.is_gated,
        experts=_experts(text) if family.has_experts else 0,
        experts_per_token=_first_of(text, CHOSEN) if family.has_experts else 0,
        dense_layers=dense,
        dense_intermediate=text[family.dense_inner] if dense else 0,
        shared_intermediate=_shared_inner(text) if family.has_experts else 0,
        has_shared_gate=bool(text.get("shared_expert_intermediate_size")),
        expert_vectors=hidden + 2 * inner if family.is_biased_by_expert else 0,
        latent=_latent(text) if family.has_latent_attention else None,
        positions=text.get("learned_positions", 0),
        longest_context=longest_text(text.get("max_position_embeddings", 0), _ropes(text)),
        layer_vectors=family.norms * norm + _more_vectors(text, family, head_dim),
        final_vectors=norm,
        windowed_layers=windowed,
        window=text["sliding_window"] if windowed else 0,
        stored_dtype=stored_dtype,
    )
    return replace(architecture, layer_vectors=architecture.layer_vectors + _biases(architecture, text, family))


def _biases(architecture: Architecture, text: Config, family: ModelTypeTraits) -> int:
    told = text if family.tells_bias else {}
    qkv = architecture.head_dim * (architecture.heads + 2 * architecture.kv_heads)
    mlp = architecture.hidden + (2 if family.is_gated else 1) * architecture.intermediate
    return (
        (qkv if told.get("attention_bias", family.has_qkv_bias) else 0)
        + (architecture.hidden if told.get("attention_bias", family.has_output_bias) else 0)
        + (mlp if told.get("mlp_bias", family.has_mlp_bias) else 0)
    )


def _more_vectors(text: Config, family: ModelTypeTraits, head_dim: int) -> int:
    """Return the parameters of a layer's norms of heads and of compressed vectors, and of biases beside its experts."""
    heads, kv_heads = text["num_attention_heads"], text.get("num_key_value_heads") or text["num_attention_heads"]
    found = (
        2 * head_dim if family.has_head_norms or (text["model_type"] == "glm4_moe" and text.get("use_qk_norm")) else 0
    )
    found += (heads + kv_heads) * head_dim if text["model_type"] == "olmoe" else 0
    found += _experts(text) + heads if family.is_biased_by_expert else 0
    return found + (text["kv_lora_rank"] + (text.get("q_lora_rank") or 0) if family.has_latent_attention else 0)


def _latent(text: Config) -> LatentAttention:
    return LatentAttention(
        query_rank=text.get("q_lora_rank") or 0,
        cached_rank=text["kv_lora_rank"],
        plain_dim=text["qk_nope_head_dim"],
        rotary_dim=text["qk_rope_head_dim"],
        value_dim=text["v_head_dim"],
    )


def _first_of(text: Config, names: Iterable[str]) -> int:
    return int(next((text[name] for name in names if text.get(name)), 0))


def _experts(text: Config) -> int:
    return _first_of(text, EXPERTS)


def _shared_inner(text: Config) -> int:
    if text["model_type"] == "llama4_text":
        return int(text["intermediate_size"])
    if text.get("shared_expert_intermediate_size"):
        return int(text["shared_expert_intermediate_size"])
    shared = text.get("n_shared_experts") or text.get("num_shared_experts") or 0
    return int(shared) * int(text.get("moe_intermediate_size") or text["intermediate_size"])


def _dense_layers(text: Config, family: ModelTypeTraits) -> int:
    if not family.has_dense_layers or not _experts(text):
        return 0
    layers, named = text["num_hidden_layers"], set(text.get("mlp_only_layers") or ())
    if text["model_type"] == "llama4_text":
        step = int(text.get("interleave_moe_layer_step") or 1)
        return int(layers) - len(text.get("moe_layers") or range(step - 1, layers, step))
    first = int(text.get("first_k_dense_replace") or 0)
    step = int(text.get("decoder_sparse_step") or text.get("moe_layer_freq") or 1)
    if "first_k_dense_replace" in text:
        return sum(layer < first or layer % step != 0 for layer in range(layers))
    return sum(layer in named or (layer + 1) % step != 0 for layer in range(layers))


def _windowed_layers(text: Config) -> int:
    """Return how many layers attend through a window; all where the file has one and does not tell which."""
    if not text.get("sliding_window") or text.get("use_sliding_window") is False:
        return 0
    kinds = text.get("layer_types") or ["sliding_attention"] * text["num_hidden_layers"]
    return sum(kind == "sliding_attention" for kind in kinds)
