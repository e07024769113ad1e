"""A GGUF file's configuration by the names of config.json; transformers' mapping reads scaled positions as unscaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ModelError
from .gguf_file import GgufFile

FAMILIES = {  # llama.cpp's names, and model_type
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
EMBEDDING = "token_embd.weight"  # a row a token
FREQUENCIES = "rope_freqs.weight"  # what the angles of Llama 3 are divided by
LOCAL_THETA = 10000.0  # of Gemma 3's layers that see a window
SCALED_BY_HEAD = {("gemma2", 46), ("gemma3", 62)}  # families and layers: the models of 27 billion parameters
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def config_of(file: GgufFile, frequencies: tuple[float, ...] = ()) -> dict[str, Any]:
    """Return what config.json would hold; `frequencies` are what the file's `FREQUENCIES` hold.

    ModelError where the family is not known, a value is missing, or positions are scaled in another way.
    """
    if file.family not in FAMILIES:
        raise ModelError(
            f"{file.path} is a {file.family or 'model of no named family'}; of GGUF files our decoder reads "
            f"{', '.join(FAMILIES)}. Give a model folder, or measure llama.cpp itself: --engine llama.cpp"
        )
    try:
        return _config(_Said(file), frequencies)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(
            f"{file.path} does not describe its model ({error!r}); convert or download it again"
        ) from error


class _Said:
    def __init__(self, file: GgufFile) -> None:
        self.file, self.family = file, file.family

    def __call__(self, name: str) -> Any:  # Any: as the file has it
        return self.file.said[f"{self.family}.{name}"]

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self.file.said.get(f"{self.family}.{name}", otherwise)


def _config(said: _Said, frequencies: tuple[float, ...]) -> dict[str, Any]:
    file, heads, hidden = said.file, int(said("attention.head_count")), int(said("embedding_length"))
    layers = int(said("block_count"))
    if not 1 <= layers <= len(file.tensors):
        raise ValueError(f"{layers} layers and {len(file.tensors)} tensors")
    config = {
        "model_type": FAMILIES[said.family],
        "vocab_size": file.tensors[EMBEDDING].shape[0],
        "hidden_size": hidden,
        "intermediate_size": int(said("feed_forward_length")),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": int(said.get("attention.head_count_kv", heads)),
        "head_dim": int(said.get("attention.key_length", hidden // heads)),
        "max_position_embeddings": int(said("context_length")),
        "rms_norm_eps": float(said("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(said, frequencies),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_tokens(file),
    }
    if said.family in ("llama", "qwen3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    if said.family in ("gemma2", "gemma3"):
        config["sliding_window"] = int(said("attention.sliding_window"))
        is_by_head = (said.family, layers) in SCALED_BY_HEAD
        config["query_pre_attn_scalar"] = hidden // heads if is_by_head else 256
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if said.family == "gemma2":
            config[cap] = float(said(cap))
    return config


def _tokens(file: GgufFile) -> dict[str, Any]:
    token = {name: file.said.get(f"tokenizer.ggml.{name}") for name in (*ENDS, "bos_token_id", "padding_token_id")}
    ends = list(dict.fromkeys(token[name] for name in ENDS if token[name] is not None))
    return {
        "eos_token_id": ends if len(ends) > 1 else ends[0] if ends else None,
        "bos_token_id": token["bos_token_id"],
        "pad_token_id": token["padding_token_id"],
    }


def _rope(said: _Said, frequencies: tuple[float, ...]) -> Mapping[str, Any]:
    kind, theta = said.get("rope.scaling.type", "none"), float(said.get("rope.freq_base", LOCAL_THETA))
    whole: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        whole |= {"rope_type": "linear", "factor": float(said("rope.scaling.factor"))}
    elif kind != "none":
        raise ModelError(
            f"{said.file.path} scales its positions by {kind!r}, which is read from model folders alone; give one, or "
            "measure llama.cpp itself: --engine llama.cpp"
        )
    if frequencies:
        whole |= {
            "rope_type": "longrope",  # of which long and short texts are the same
            "long_factor": list(frequencies),
            "short_factor": list(frequencies),
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": int(said("context_length")),
        }
    if said.family != "gemma3":
        return whole
    return {"full_attention": whole, "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL_THETA}}
