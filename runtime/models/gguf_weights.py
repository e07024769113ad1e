"""The weights of a GGUF file as transformers' models hold them, and the tokenizer inside it.

Quantised weights become bfloat16 whatever the model's number format: it holds a block's few bits, and a float32 model
has the weights of a bfloat16 one. Tensors are converted in pieces, so only the result is ever held whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    TOKENIZER_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ...errors import ModelError
from ...profiler.gguf_config import EMBEDDING, FREQUENCIES, config_of
from ...profiler.gguf_file import PLAIN, GgufFile, read_gguf
from .kernels.packed_dots import EIGHT_BITS, EIGHT_BITS_FINE, FOUR_BITS
from .packed import PackedWeight, Whole, packed

AT_ONCE = 2**22  # numbers that are converted in one piece
TOKENS, KIND, SPLIT = "tokenizer.ggml.tokens", "tokenizer.ggml.model", "tokenizer.ggml.pre"
SPLITS = (  # of texts before byte-level BPE, that transformers knows from GGUF files; the first two are GPT-2's
    "gpt-2",
    "smollm",  # whose digits stand alone: it has no merges of them
    "llama-bpe",
    "llama-v3",
    "llama3",
    "qwen2",
    "deepseek-r1-qwen",
    "tekken",
)


def gguf_config(path: Path) -> PreTrainedConfig:
    """Return the configuration of a GGUF file's model; ModelError where it is unreadable or of an unknown family."""
    file = read_gguf(path)
    frequencies = file.tensors.get(FREQUENCIES)
    found = () if frequencies is None else tuple(_read(file, FREQUENCIES, torch.float32).flatten().tolist())
    config: PreTrainedConfig = AutoConfig.for_model(**config_of(file, found))
    return config


def gguf_weights(
    path: Path, config: PreTrainedConfig, dtype: torch.dtype, packed: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the weights of a GGUF file by the model's names, tied ones once; `packed` ones as zeros without memory.

    ModelError where a tensor has no place in the model, or is stored in a format that cannot be read.
    """
    file = read_gguf(path)
    nothing = torch.zeros((), dtype=dtype)
    return {
        name: nothing.expand(file.tensors[place].shape)
        if name in packed
        else _as_transformers(name, _read(file, place, dtype, added=_added(name, config)), config)
        for name, place in _places(file, config).items()
        if place in file.tensors
    }


def packed_weights(path: Path, config: PreTrainedConfig, names: Iterable[str]) -> Iterator[tuple[str, PackedWeight]]:
    """Yield names and weights of a GGUF file for our kernels; a tied head is the embedding.

    ModelError where a tensor is stored in a format that cannot be read, or no kernel is for its shape.
    """
    file = read_gguf(path)
    places = _places(file, config)
    for name in names:
        tensor = file.tensors.get(places.get(name, EMBEDDING)) or file.tensors[EMBEDDING]
        count = math.prod(tensor.shape[:-1]) * tensor.row_bytes
        stored = torch.from_numpy(np.fromfile(path, np.uint8, count, offset=tensor.offset)).view(-1, tensor.row_bytes)
        yield name, packed_blocks(_as_transformers(name, stored, config).numpy(), tensor.format)


def require_places(path: Path) -> None:
    """Raise ModelError where a tensor of a GGUF file has no place in its model; reads no weights."""
    _places(read_gguf(path), gguf_config(path))


def _places(file: GgufFile, config: PreTrainedConfig) -> dict[str, str]:
    """Return a file's names of weights by the model's names; ModelError where a tensor has no place."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == file.family)
    known = get_tensor_name_map(kind, int(config.num_hidden_layers))
    with torch.device("meta"):
        wanted = AutoModelForCausalLM.from_config(config).state_dict()
    places = {name: known.get_name(name, try_suffixes=(".weight", ".bias")) for name in wanted}
    lost = file.tensors.keys() - set(places.values()) - {FREQUENCIES}
    if lost:
        raise ModelError(
            f"{file.path} holds {', '.join(sorted(lost)[:3])}, for which a {config.model_type} has no place; give a "
            "model folder, or measure llama.cpp itself: --engine llama.cpp"
        )
    return {name: place for name, place in places.items() if place is not None}


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer inside a GGUF file, with its chat template; ModelError without one of a known kind."""
    file, config = read_gguf(path), gguf_config(path)
    kind, split = file.said.get(KIND), file.said.get(SPLIT, "default")
    if kind is None or not file.said.get(TOKENS):
        raise ModelError(f"{path} holds no tokenizer; convert the model again, with its tokenizer, or give a folder")
    if kind != "llama" and (kind != "gpt2" or split not in SPLITS):
        raise ModelError(
            f"the tokenizer of {path} is a {kind} that splits texts as {split}; of GGUF files llama is read, and gpt2 "
            f"with the splits {', '.join(SPLITS)}. Give a model folder, or measure llama.cpp itself: --engine llama.cpp"
        )
    own: Any = TOKENIZER_MAPPING.get(type(config), None) or PreTrainedTokenizerFast  # Any: a class without types
    try:
        return _without_strangers(own.from_pretrained(str(path.parent), gguf_file=path.name), file)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(f"the tokenizer of {path} cannot be read ({error!r}); convert the model again") from error


def _without_strangers(found: Any, file: GgufFile) -> PreTrainedTokenizerBase:  # Any: a class without types
    """Return a tokenizer without tokens that the file lacks: transformers adds GPT-2's."""
    inside = json.loads(found.backend_tokenizer.to_str())
    known = [token for token in inside["added_tokens"] if token["id"] < int(str(file.said[TOKENS]))]
    if len(known) == len(inside["added_tokens"]):
        return cast(PreTrainedTokenizerBase, found)
    tokenizer = Tokenizer.from_str(json.dumps({**inside, "added_tokens": known}))
    names = ("bos_token", "eos_token", "unk_token", "pad_token", "chat_template")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{name: getattr(found, name) for name in names})


def _as_transformers(name: str, weight: Tensor, config: PreTrainedConfig) -> Tensor:
    """Return a weight with its rows in transformers' order: in a Llama's heads llama.cpp turns neighbours together."""
    if config.model_type != "llama" or name.split(".")[-2] not in ("q_proj", "k_proj"):
        return weight
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _added(name: str, config: PreTrainedConfig) -> float:
    """Return what llama.cpp has added to a weight: one to Gemma's norms."""
    return float(config.model_type.startswith("gemma") and name.endswith("norm.weight"))


def _read(file: GgufFile, name: str, dtype: torch.dtype, *, added: float = 0.0) -> Tensor:
    """Return a tensor of a file, less what was added to it."""
    tensor = file.tensors[name]
    through = dtype if tensor.format in PLAIN else torch.bfloat16
    weight = torch.empty((math.prod(tensor.shape[:-1]), tensor.shape[-1]), dtype=dtype)
    first = 0
    for piece in _pieces(file, name, len(weight)):
        weight[first : first + len(piece)] = torch.from_numpy(piece - added if added else piece).to(through)
        first += len(piece)
    return weight.view(tensor.shape)


def _pieces(file: GgufFile, name: str, rows: int) -> Iterator[NDArray[np.float32]]:
    from gguf import GGMLQuantizationType, dequantize

    tensor = file.tensors[name]
    at_once = max(1, AT_ONCE // tensor.shape[-1])
    for first in range(0, rows, at_once):
        count = min(at_once, rows - first)
        place = tensor.offset + first * tensor.row_bytes
        stored = np.fromfile(file.path, np.uint8, count * tensor.row_bytes, offset=place)
        try:  # as one row: of many, 16 are converted at a time
            yield dequantize(stored[None], GGMLQuantizationType[tensor.format]).reshape(count, -1)
        except NotImplementedError as error:
            raise ModelError(
                f"{file.path} stores {name} as {tensor.format}, which the package gguf does not read; give a file in "
                "another format, such as Q4_K_M, or a model folder"
            ) from error


Number = TypeVar("Number", bound=np.generic)

Numbers = NDArray[np.float32]
EIGHTS, SIXTEENTHS = 256 // 32, 256 // 16  # groups of a block of 256 numbers
HALF = 2  # bytes of a float16
ANY = "Q8_0"  # what other formats are rounded to


def packed_blocks(stored: Whole, form: str) -> PackedWeight:
    """Return a weight (out, in) of quantised blocks (out, bytes); formats without a packing are rounded to 8 bits."""
    from gguf import GGMLQuantizationType, dequantize, quantize

    if form in UNPACKED:
        return UNPACKED[form](stored)
    return UNPACKED[ANY](quantize(dequantize(stored, GGMLQuantizationType[form]), GGMLQuantizationType[ANY]))


def _scale(blocks: Whole, first: int) -> Numbers:
    """Return the float16 number at a byte of every block, (out, blocks, 1)."""
    return np.ascontiguousarray(blocks[..., first : first + HALF]).view(np.float16).astype(np.float32)


def _halves(stored: Whole) -> Whole:
    """Return lower, then upper halves of bytes, (out, blocks, 2 * bytes)."""
    return np.concatenate((stored & 15, stored >> 4), axis=-1)


def _flat(numbers: NDArray[Number]) -> NDArray[Number]:
    """Return (out, all the rest)."""
    return numbers.reshape(len(numbers), -1)


def _of_q4(stored: Whole, *, has_least: bool) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 20 if has_least else 18)
    scales = _scale(blocks, 0)
    leasts = -_scale(blocks, HALF) if has_least else 8 * scales
    numbers = _flat(_halves(blocks[..., -16:]))
    return packed(numbers, scales[..., 0], FOUR_BITS, leasts=leasts[..., 0])


def _of_q5_0(stored: Whole) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 22)
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    return packed(
        _flat((_halves(blocks[..., 6:]) | fifth << 4).astype(np.uint8)), _scale(blocks, 0)[..., 0], EIGHT_BITS, zero=16
    )


def _of_q8_0(stored: Whole) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 34)
    return packed(_flat((blocks[..., 2:] ^ 128).astype(np.uint8)), _scale(blocks, 0)[..., 0], EIGHT_BITS, zero=128)


def _of_q4_k(stored: Whole) -> PackedWeight:
    from gguf.quants import Q4_K

    blocks = stored.reshape(len(stored), -1, 144)
    scales, leasts = (
        each.reshape(*blocks.shape[:2], EIGHTS) for each in Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))
    )
    numbers = _flat(_halves(blocks[..., 16:].reshape(len(stored), -1, 32)))
    return packed(
        numbers, _flat(_scale(blocks, 0) * scales), FOUR_BITS, leasts=_flat(_scale(blocks, HALF) * leasts)
    )  # fmt: skip


def _of_q6_k(stored: Whole) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 210)
    lower = _halves(blocks[..., :128].reshape(len(stored), -1, 64))
    upper = blocks[..., 128:192].reshape(len(stored), -1, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = _scale(blocks, 208) * blocks[..., 192:208].view(np.int8)
    return packed((_flat(lower) | _flat(upper) << 4).astype(np.uint8), _flat(scales), EIGHT_BITS_FINE, zero=32)


UNPACKED: Mapping[str, Callable[[Whole], PackedWeight]] = {
    "Q4_0": partial(_of_q4, has_least=False),
    "Q4_1": partial(_of_q4, has_least=True),
    "Q5_0": _of_q5_0,
    "Q8_0": _of_q8_0,
    "Q4_K": _of_q4_k,
    "Q6_K": _of_q6_k,
}
