"""Keys of a drafter's config.json: computed, harmless, or such that would change the computation.

A key on no list is refused by name, unless its value switches it off or a word of its name is in `OF_TRAINING`.

Source: what vLLM's, SGLang's, TensorRT-LLM's and speculators' models of heads read, and what their trainers write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ModelError

Keys = Mapping[str, Any]  # JSON values, as config.json holds them
Allowed = Mapping[str, tuple[Any, ...]]


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


NESTED = ("eagle_config", "eagle_architecture_config")  # dictionaries whose keys mean what they mean at the top
ROPES = ("rope_parameters", "rope_scaling")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
ROPE_KEYS = _names(
    "rope_type type rope_theta factor original_max_position_embeddings attention_factor beta_fast beta_slow "
    "low_freq_factor high_freq_factor mscale mscale_all_dim truncate"
)
COMPUTED = _names(
    "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim rms_norm_eps vocab_size "
    "draft_vocab_size max_position_embeddings original_max_position_embeddings rope_theta target_hidden_size "
    "eagle_aux_hidden_state_layer_ids num_aux_hidden_states num_eagle_features attention_bias qkv_bias bias"
)  # read here, or compared with the tensors and with the target
HARMLESS = _names(
    "_name_or_path _attn_implementation attn_implementation _attn_implementation_internal add_cross_attention "
    "attention_dropout cross_attention_hidden_size embed_requires_grad max_window_layers num_logits_to_keep "
    "num_target_layers output_attentions output_hidden_states parallel_draft_heads_num_layers pretraining_tp "
    "target_layer_count target_num_hidden_layers target_vocab_size tie_encoder_decoder tie_word_embeddings "
    "tied_encoder_decoder use_cache decoder_sparse_step cache_implementation head_dtype temperature top_k top_p "
    "eagle_freeze_base_model num_assistant_tokens"
)  # of the target, or of decoding
BESIDE = _names(
    "architectures author auto_map bad_words_ids base_model base_model_name_or_path begin_suppress_tokens "
    "chunk_size_feed_forward diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size "
    "exponential_decay_length_penalty finetuning_task id2label is_encoder_decoder keys_to_ignore_at_inference "
    "label2id language length_penalty library_name license max_length max_new_tokens min_length min_new_tokens min_p "
    "model_name model_name_or_path name no_repeat_ngram_size num_beam_groups num_beams num_return_sequences "
    "output_scores prefix problem_type producer pruned_heads remove_invalid_values repetition_penalty return_dict "
    "return_dict_in_generate suppress_tokens tags target_model target_model_name target_model_name_or_path "
    "target_model_type task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript ttt_length "
    "typical_p use_bfloat16"
)  # who made it, of what; transformers' own fields of every configuration
ONLY: Allowed = {
    "num_hidden_layers": (1,),
    "num_layers": (1,),
    "num_eagle_layers": (1,),
    "eagle_num_layers": (1,),
    "mask_token_id": (),
    "ptd_token_id": (),
    "block_size": (),
    "hidden_act": ("silu", "swish"),
    "hidden_activation": ("silu", "swish"),
    "activation_function": ("silu", "swish"),
    "mlp_hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rotary_percent": (1,),
    "is_causal": (True,),
    "causal": (True,),
    "use_rope": (True,),
    "use_rotary_embeddings": (True,),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "next_layer_regular": (True,),
    "parallel_draft_step": (0, 1),
    "eagle_decoder_type": ("llama",),
    "model_type": ("llama", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    "position_embedding_type": ("rope",),
}  # values of keys at which nothing else is computed; None is one for each
OF_FORM: Mapping[str, Allowed] = {
    "eagle": {
        "use_aux_hidden_state": (False,),
        "use_input_layernorm_in_first_layer": (False,),
        "use_last_layernorm": (False,),
    },
    "eagle3": {
        "use_aux_hidden_state": (True,),
        "use_input_layernorm_in_first_layer": (True,),
        "use_last_layernorm": (True,),
    },
}
OF_DFLASH = _names(
    "hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim rms_norm_eps vocab_size "
    "max_position_embeddings rope_theta attention_bias num_hidden_layers num_target_layers block_size mask_token_id "
    "target_layer_ids input_embedding_scale output_multiplier final_logit_softcapping"
)  # computed, of a DFlash drafter
OF_TRAINING = _names("dropout pdrop drop loss train training grad lr init initializer distillation version")
APART = ("architectures", *ROPES, "sliding_window", "use_sliding_window", "layer_types")  # whose checks are their own
COUNT = "num_hidden_layers"
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "phi3")  # whose architectures a head's may be named after
ARCHITECTURE = re.compile(
    r"(LlamaForCausalLMEagle|EagleLlamaForCausalLM|LlamaForCausalLMEagle3|Eagle3LlamaForCausalLM|LlamaForCausalLM"
    r"|Eagle3Qwen2_5vlForCausalLM|Eagle3Qwen3vlForCausalLM)"
)  # all of which engines run as the same layer
OF_FIRST = re.compile(r"(Qwen2|Mistral|Mixtral)ForCausalLM(Eagle)?|Eagle(Qwen2|Mistral)ForCausalLM|EAGLE(Model)?")


def require_computed(what: str, written: Keys, form: str) -> None:
    """Raise ModelError, with key and value, where a head's config.json, less our key, needs more than is computed."""
    allowed = {**ONLY, **OF_FORM[form]}
    for key, value in _flat(written):
        name = key.rpartition(".")[2]
        if key != COUNT and not _is_computed(name, value, allowed):
            raise ModelError(
                f"{what} says {key}: {_shown(value)} in its config.json, which spectune does not compute; give a head "
                f"without it{_hint(name, allowed)}, or leave the key out where it changes no number"
            )
    _require_architecture(what, written.get("architectures"), form)
    _require_window(what, written)
    for key in NESTED:
        if written.get(key) and not isinstance(written[key], Mapping):
            raise ModelError(
                f"{what} says {key}: {_shown(written[key])} in its config.json, where a dictionary belongs"
            )
    for key in ROPES:
        _require_rope(what, key, written.get(key))
    _require_one_rope(what, written)


def require_dflash_computed(what: str, written: Keys, nested: Keys, name: str) -> None:
    """Raise ModelError, with key and value, where a DFlash drafter needs more than is computed.

    `nested` is the dictionary of its own keys, which lies in its config.json under `name`.
    """
    allowed = {**ONLY, "is_causal": (False,), "causal": (False,)}
    top = {key: value for key, value in written.items() if key not in (*APART, name)}
    for key, value in [*top.items(), *((f"{name}.{inner}", one) for inner, one in nested.items())]:
        last = key.rpartition(".")[2]
        is_of_head = last in COMPUTED and value not in (None, 0, [])
        if last not in OF_DFLASH and (is_of_head or not _is_computed(last, value, allowed)):
            raise ModelError(
                f"{what} says {key}: {_shown(value)} in its config.json, which spectune does not compute; give a "
                f"drafter without it{_hint(last, allowed)}"
            )
    _require_window(what, written)
    for key in ROPES:
        _require_rope(what, key, written.get(key))
    _require_one_rope(what, written)


def require_nothing_else(what: str, written: Keys, architecture: str, ours: str) -> None:
    """Raise ModelError where a drafter trained here has more in its config.json than `architecture` and our key."""
    for key, value in written.items():
        if key == ours or (key == "architectures" and value in ([architecture], None)):
            continue
        if key == "architectures" or not _is_computed(key, value, ONLY) or key in COMPUTED:
            raise ModelError(
                f"{what} says {key}: {_shown(value)} in its config.json, which spectune does not compute; train it "
                "again, or leave the key out"
            )


def require_counts(said: Mapping[Any, Any], *apart: str) -> None:
    """Raise TypeError unless all values, but those of the keys `apart`, are whole numbers."""
    for key, value in said.items():
        if key not in apart and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"{key} is {_shown(value)}, and a whole number belongs there")


def require_one_layer(what: str, count: int | None, of_target: int) -> None:
    """Raise ModelError where config.json of a head counts other layers than the one that its tensors make up.

    Heads whose config.json was copied from the target's count the target's layers, as yuhuili/EAGLE3-Vicuna1.3-13B does
    (40). Engines that read the key look for so many layers; spectune computes the tensors that are there.

    Args:
        what: the head, for messages.
        count: num_hidden_layers of its config.json; None where it does not say.
        of_target: layers of its target.
    """
    if count not in (None, 1, of_target):
        raise ModelError(
            f"{what} says {COUNT}: {count} in its config.json, which spectune does not compute; its tensors "
            f"are of one layer, so that 1 belongs there, or {of_target} where it was copied from this target's; give "
            "another head, or mend it"
        )


def _flat(written: Keys) -> Iterator[tuple[str, Any]]:
    """Yield keys and values, with those of nested descriptions of a head."""
    for key, value in written.items():
        if key in NESTED and isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", each) for inner, each in _flat(value))
        elif key not in (*APART, *NESTED):
            yield key, value


def _is_computed(name: str, value: Any, allowed: Allowed) -> bool:
    if name in allowed and value is not None:
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed[name])
    is_off = value in (None, 0, "", [], {})  # False is 0
    is_known = name in COMPUTED | HARMLESS | BESIDE or name.endswith(("_token_id", "_token_ids"))
    return is_off or is_known or bool(OF_TRAINING & set(re.split(r"[^a-z]+", name.lower())))


def _require_architecture(what: str, named: Any, form: str) -> None:
    if named is None or named == []:
        return
    one = named[0] if isinstance(named, list) and len(named) == 1 else named
    is_known = isinstance(one, str) and (
        bool(ARCHITECTURE.fullmatch(one)) or (form == "eagle" and bool(OF_FIRST.fullmatch(one)))
    )
    if not is_known:
        raise ModelError(
            f"{what} says architectures: {_shown(named)} in its config.json, which spectune does not compute; "
            "supported are heads of one Llama layer, such as LlamaForCausalLMEagle and LlamaForCausalLMEagle3"
        )


def _require_window(what: str, written: Keys) -> None:
    """Raise ModelError where a head's layer sees only a window of the text: it is computed over all of it."""
    window, positions = written.get("sliding_window"), written.get("max_position_embeddings")
    kinds, is_used = written.get("layer_types") or [], written.get("use_sliding_window")
    if any(kind != "full_attention" for kind in kinds):
        raise ModelError(
            f"{what} says layer_types: {_shown(kinds)} in its config.json; only full_attention is computed"
        )
    sees_all = not window or (isinstance(positions, int) and isinstance(window, int) and window >= positions)
    if not sees_all and is_used is not False and not kinds:
        raise ModelError(
            f"{what} says sliding_window: {_shown(window)} in its config.json, and a head's layer is computed over the "
            "whole text; give a head without it, or say use_sliding_window: false if it was trained so"
        )


def _require_rope(what: str, key: str, rope: Any) -> None:
    if not rope:
        return
    if not isinstance(rope, Mapping):
        raise ModelError(f"{what} says {key}: {_shown(rope)} in its config.json, where a dictionary belongs")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelError(
            f"{what} says {key}.rope_type: {_shown(kind)} in its config.json, which spectune does not compute; "
            f"supported are {', '.join(ROPE_TYPES)}"
        )
    if "type" in rope and rope["type"] != kind:
        raise ModelError(f"{what} names two kinds of {key} in its config.json, {kind} and {rope['type']}; leave one")
    for name, value in rope.items():
        if name in ROPE_KEYS or value is None or (name == "partial_rotary_factor" and value == 1):
            continue
        raise ModelError(f"{what} says {key}.{name}: {_shown(value)} in its config.json, which is not computed")


def _require_one_rope(what: str, written: Keys) -> None:
    """Raise ModelError where the positions of a head are described twice, and differently."""
    ropes = {key: written[key] for key in ROPES if written.get(key)}
    told = [(f"{key}.rope_theta", rope["rope_theta"]) for key, rope in ropes.items() if rope.get("rope_theta")]
    told += [("rope_theta", written["rope_theta"])] if written.get("rope_theta") else []
    differ = any(theta != told[0][1] for _, theta in told)
    if differ or any(rope != next(iter(ropes.values())) for rope in ropes.values()):
        both = told if differ else list(ropes.items())
        shown = " and ".join(f"{key}: {_shown(value)}" for key, value in both)
        raise ModelError(f"{what} says {shown} in its config.json; leave the wrong one out")


def _hint(name: str, allowed: Allowed) -> str:
    return f" (computed is {', '.join(map(_shown, allowed[name]))})" if name in allowed else ""


def _shown(value: Any) -> str:
    """Return a value as JSON writes it, shortened."""
    shown = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else str(value)
    assert shown is not None
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
