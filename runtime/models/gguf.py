"""Write a Llama folder of Hugging Face as the one file that llama.cpp reads; needs the `gguf` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import PreTrainedConfig

from ...errors import ModelError
from ...profiler.identity import require_no_adapter, weight_files
from .loading import load_config
from .rehearsal import require_loadable

if TYPE_CHECKING:
    from gguf import GGUFWriter

GgufDtype = Literal["f32", "f16", "bf16"]
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
ELSEWHERE = "make it with llama.cpp's convert_hf_to_gguf.py and give the file"
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}  # gguf's names


def write_gguf(folder: Path, out: Path, *, dtype: GgufDtype) -> Path:
    """Write a model folder as one GGUF file and return its path; the file is complete or absent.

    Matrices get `dtype`, vectors f32, as by llama.cpp's own converter. An output that equals the embedding is left out:
    llama.cpp then uses the embedding.

    Raises:
        ModelError: not a Llama, scaled positions, or not a byte-level BPE tokenizer split as GPT-2's.
    """
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = require_writable(folder)
    part = out.with_name(f"{out.name}.part")
    writer = GGUFWriter(part, MODEL_ARCH_NAMES[MODEL_ARCH.LLAMA])
    _add_shape(writer, config, dtype)
    _add_vocabulary(writer, folder, config.vocab_size)
    for name, weight in _weights(folder, config):
        kind = GGMLQuantizationType[dtype.upper() if weight.ndim > 1 else "F32"]
        writer.add_tensor(name, quantize(weight.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return part.rename(out)


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows (heads x d, ...) in llama.cpp's order: it rotates 2 i with 2 i + 1, Hugging Face i with i + d / 2."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def require_writable(folder: Path) -> PreTrainedConfig:
    """Return the configuration of a model that `write_gguf` can write; ModelError for others."""
    require_no_adapter(folder)
    config = load_config(str(folder))
    acts = getattr(config, "hidden_act", "another activation")
    if config.model_type != "llama" or acts != "silu":
        raise ModelError(f"{folder} is a {config.model_type} ({acts}); only a Llama can be written here: {ELSEWHERE}")
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        raise ModelError(f"{folder} scales its positions ({kind}); only unscaled ones can be written here: {ELSEWHERE}")
    require_loadable(str(folder))
    _require_gpt2_split(folder)
    return config


def _add_shape(writer: GGUFWriter, config: PreTrainedConfig, dtype: GgufDtype) -> None:
    from gguf import LlamaFileType

    width = config.head_dim or config.hidden_size // config.num_attention_heads
    writer.add_file_type(LlamaFileType[FILE_TYPES[dtype]])
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _add_vocabulary(writer: GGUFWriter, folder: Path, size: int) -> None:
    from gguf import SpecialVocab, TokenType

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    texts: list[str] = []
    kinds: list[int] = []
    for token in range(size):
        text = tokenizer.id_to_token(token)
        texts.append(f"[PAD{token}]" if text is None else text)
        if text is None:
            kinds.append(TokenType.UNUSED)
        elif token in added:
            kinds.append(TokenType.CONTROL if added[token].special else TokenType.USER_DEFINED)
        else:
            kinds.append(TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    special = SpecialVocab(folder, load_merges=True, n_vocab=size)
    special.add_special_token.setdefault("bos", False)
    special.add_to_gguf(writer, quiet=True)


def _require_gpt2_split(folder: Path) -> None:
    try:
        described: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))  # Any: JSON
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no tokenizer.json that can be read ({error}); {ELSEWHERE}") from error
    model, split = described.get("model") or {}, described.get("pre_tokenizer") or {}
    is_bytes = model.get("type") == "BPE" and split.get("type") == "ByteLevel" and split.get("use_regex", True)
    begins, normalizer = split.get("add_prefix_space", True), (described.get("normalizer") or {}).get("type")
    if not is_bytes or begins or normalizer:
        raise ModelError(
            f"the tokenizer in {folder} is {model.get('type')} split by {split.get('type')}, "
            f"with the normalizer {normalizer} and add_prefix_space {begins}; only a byte-level BPE split as GPT-2's, "
            f"without these two, can be written here: {ELSEWHERE}"
        )


def _has_equal_output(folder: Path) -> bool:
    """Whether a folder's output, if stored, equals its embedding; transformers ties it only then."""
    stored: dict[str, torch.Tensor] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as tensors:
            held = {EMBEDDING, OUTPUT}.intersection(tensors.keys())
            stored |= {name: tensors.get_tensor(name) for name in held}
    return len(stored) < 2 or torch.equal(stored[EMBEDDING], stored[OUTPUT])


def _weights(folder: Path, config: PreTrainedConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield every stored weight by llama.cpp's name, in float32."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    is_tied = config.tie_word_embeddings and _has_equal_output(folder)
    for file in weight_files(folder):
        for name, weight in load_file(file).items():
            if is_tied and name == OUTPUT:
                continue
            known = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if known is None:
                raise ModelError(f"llama.cpp's Llama has no place for {name} of {folder}: {ELSEWHERE}")
            projection = name.split(".")[-2]
            rows = interleaved(weight, heads[projection]) if projection in heads else weight
            yield known, rows.float()
