"""Names and number formats of a model folder's tensors: refuse what would be computed wrongly."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from ...errors import ModelError
from ...profiler.identity import weight_files
from .stored_tensors import TensorHeader, stored_tensors

PLAIN = ("F64", "F32", "F16", "BF16")  # safetensors' names of formats whose numbers are what they say
WHOLE = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")  # of masks and places, but of no weight
HARMLESS = re.compile(  # tensors that older versions have written, and the models compute themselves
    r"(^|\.)(rotary_emb\.(inv_freq|cos_cached|sin_cached)|position_ids|(attn|attention)\.(masked_)?bias|mtp\..*)$"
)
OF_QUANTISERS = re.compile(
    r"(^|[._])((weight|input|output|k|v|q)_scale(_inv|_2)?|qweight|qzeros|g_idx|(weight_)?zero_point|SCB|absmax)$"
)
INSTEAD = "give the model in bfloat16 or float16, or as a GGUF file"


def require_computable(folder: Path, config: PreTrainedConfig) -> None:
    """Raise ModelError for an unknown method of quantisation, or float8 or whole numbers as weights without one."""
    tensors = stored_tensors(folder, weight_files(folder))
    if _quantised_by(folder, config) is None:
        _require_plain(folder, tensors)


def require_loaded(location: str, found: Mapping[str, Collection[Any]]) -> None:
    """Raise ModelError where a checkpoint lacks tensors, or holds some of other shapes or without a place."""
    if missing := found["missing_keys"]:
        raise ModelError(
            f"{location} lacks weights ({listed(sorted(missing))}); finish the download or save the model again"
        )
    if others := sorted((name, tuple(seen), tuple(needed)) for name, seen, needed in found["mismatched_keys"]):
        told = [f"{name} as {_sized(seen)} where {_sized(needed)} belong" for name, seen, needed in others]
        raise ModelError(
            f"{location} stores {listed(told)}; its weights and its config.json are of two models, copy both again"
        )
    require_all_read(location, found["unexpected_keys"])


def require_all_read(location: str, unread: Collection[str]) -> None:
    """Raise ModelError where transformers has `unread` tensors of a checkpoint, without a place in its model."""
    strange = sorted(name for name in unread if not HARMLESS.search(name))
    if strange:
        raise ModelError(
            f"{location} stores {listed(strange)}, which its model does not read; {INSTEAD}, or a config.json that "
            "names what reads them"
        )


def strange_scales(tensors: Mapping[str, TensorHeader]) -> list[str]:
    """Return the names of tensors that come with quantised weights."""
    return [name for name in tensors if OF_QUANTISERS.search(name)]


def listed(names: Collection[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = len(names) - 3
    return ", ".join(list(names)[:3]) + (f" and {more} more" if more > 0 else "")


def _sized(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _quantised_by(folder: Path, config: PreTrainedConfig) -> str | None:
    """Return transformers' method for quantised weights, None for plain ones; ModelError where it knows none."""
    said: Any = getattr(config, "quantization_config", None) or getattr(  # Any: JSON
        config.get_text_config(), "quantization_config", None
    )
    if said is None:
        return None
    told = said if isinstance(said, dict) else said.to_dict()
    method = str(told.get("quant_method"))
    if told.get("load_in_8bit") or told.get("load_in_4bit"):
        method = "bitsandbytes_4bit" if told.get("load_in_4bit") else "bitsandbytes_8bit"
    if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise ModelError(f"{folder} is quantised by {method!r}, which nothing here reads; {INSTEAD}")
    return method


def _require_plain(folder: Path, tensors: Mapping[str, TensorHeader]) -> None:
    """Raise ModelError where weights without a method of quantisation are no plain numbers."""
    odd = [name for name, tensor in tensors.items() if tensor.dtype not in PLAIN + WHOLE]
    odd += [name for name, tensor in tensors.items() if tensor.dtype in WHOLE and name.endswith("weight")]
    if odd:
        formats = ", ".join(sorted({tensors[name].dtype for name in odd}))
        raise ModelError(
            f"{folder} stores {listed(sorted(odd))} as {formats}, and its config.json names no quantization_config "
            f"that reads them; {INSTEAD}"
        )
