"""Tiny models as GGUF files, of any family and in any format that the package gguf writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from numpy.typing import NDArray
from transformers import PreTrainedModel

from spectune.runtime.models.gguf import _add_vocabulary

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2}


def write_tiny_gguf(
    model: PreTrainedModel,
    path: Path,
    *,
    family: str,
    format: str = "F32",
    said: Mapping[str, Any] | None = None,
    more: Mapping[str, NDArray[np.float32]] | None = None,
    ends: Mapping[str, int] | None = None,
    tokenizer: Path | None = None,
) -> Path:
    """Write a model's weights, as llama.cpp's converter arranges them.

    Args:
        model: of llama.cpp's family.
        path: of the file.
        family: its architecture there.
        format: of matrices.
        said: further texts and numbers, by their names behind the family's.
        more: further tensors.
        tokenizer: folder of one that splits texts as GPT-2's; none is written where None.
        ends: tokens at which texts end, by what they end.
    """
    config = model.config.get_text_config()
    writer = GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if format in FILE_TYPES:
        writer.add_file_type(FILE_TYPES[format])
    for name, value in (said or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"{family}.{name}", value)
    if tokenizer is not None:
        _add_vocabulary(writer, tokenizer, config.vocab_size)
    for name, token in (ends or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    names = get_tensor_name_map(
        next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == family), config.num_hidden_layers
    )
    is_tied = config.tie_word_embeddings
    for name, weight in model.state_dict().items():
        if not (is_tied and name == "lm_head.weight"):
            place = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert place is not None
            _add(writer, place, arranged(name, weight.float().numpy(), family, config), format)
    for name, tensor in (more or {}).items():
        _add(writer, name, tensor, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def arranged(name: str, weight: NDArray[np.float32], family: str, config: Any) -> NDArray[np.float32]:
    """Return a weight as llama.cpp's converter does: rows 2 i and 2 i + 1 of a head turn together; norms plus 1."""
    if family == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        half = len(weight) // heads // 2
        rows = [head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in (0, 1)]
        return weight[rows]
    return weight + 1 if family.startswith("gemma") and name.endswith("norm.weight") else weight


def _add(writer: GGUFWriter, name: str, weight: NDArray[np.float32], format: str) -> None:
    kind = GGMLQuantizationType[format if weight.ndim > 1 else "F32"]
    writer.add_tensor(name, quantize(weight, kind), raw_dtype=kind)
