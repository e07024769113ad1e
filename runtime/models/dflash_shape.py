"""A DFlash drafter as its config.json describes it, in the format of its authors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ModelError
from .config_file import DFLASH_KEYS, ROPE_KEYS
from .config_keys import require_dflash_computed

BLOCK = 16  # places of a block where config.json does not say
COUNTS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
)
EPS = 1e-6  # of the norms where config.json does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashShape:
    """The layers of a DFlash drafter, and how they meet their target's embedding and head."""

    hidden: int
    inner: int  # width of the MLPs
    heads: int
    kv_heads: int
    size: int  # of a head
    layers: int
    block: int  # places of a block, its first token included
    mask: int  # id of the token at the places that are to be said
    reads: tuple[int, ...]  # how many of the target's layers each hidden state has passed
    of_layers: int  # that its target has; 0 where config.json does not say
    has_bias: bool  # in attention
    eps: float
    embedding_scale: float
    logit_scale: float
    logit_cap: float  # 0: none
    rope: Mapping[str, Any]  # how places are turned, as config.json says it


def dflash_shape(what: str, written: Mapping[str, Any]) -> DFlashShape:
    """Return the shape that a config.json describes; ModelError where it lacks something, or more is needed.

    Source: keys as PyPI's dflash 0.1.0 reads them, first in `dflash_config`, then at the top.
    """
    nested = written.get(DFLASH_KEYS) or {}
    if not isinstance(nested, Mapping):
        raise ModelError(f"{what} says {DFLASH_KEYS}: {nested} in its config.json, where a dictionary belongs; mend it")
    require_dflash_computed(what, written, nested, DFLASH_KEYS)
    said = {**written, **nested}
    for key in (*COUNTS, "block_size", "num_target_layers", "mask_token_id"):
        _require_count(what, key, said.get(key, _default(key)))
    sizes = {key: int(written[key]) for key in COUNTS}
    of_layers, layers = int(said.get("num_target_layers", 0)), sizes["num_hidden_layers"]
    heads, pairs, size = sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["head_dim"]
    if heads % pairs or size % 2:
        raise ModelError(
            f"{what} says num_attention_heads: {heads}, num_key_value_heads: {pairs} and head_dim: {size} in its "
            "config.json, which do not divide; mend it"
        )
    return DFlashShape(
        hidden=sizes["hidden_size"],
        inner=sizes["intermediate_size"],
        heads=heads,
        kv_heads=pairs,
        size=size,
        layers=layers,
        block=int(said.get("block_size", BLOCK)),
        mask=int(said["mask_token_id"]),
        reads=_reads(what, said.get("target_layer_ids"), of_layers, layers),
        of_layers=of_layers,
        has_bias=bool(written.get("attention_bias")),
        eps=_number(what, "rms_norm_eps", written.get("rms_norm_eps"), EPS),
        embedding_scale=_number(what, "input_embedding_scale", said.get("input_embedding_scale"), 1.0),
        logit_scale=_number(what, "output_multiplier", said.get("output_multiplier"), 1.0),
        logit_cap=_number(what, "final_logit_softcapping", said.get("final_logit_softcapping"), 0.0),
        rope={key: written[key] for key in ROPE_KEYS if written.get(key) is not None},
    )


def _default(key: str) -> int | None:
    return {"block_size": BLOCK, "num_target_layers": 1}.get(key)


def _require_count(what: str, key: str, value: Any) -> None:
    least = {"mask_token_id": 0, "block_size": 2}.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(
            f"{what} says {key}: {value} in its config.json, where a whole number of {least} or more belongs; copy it "
            "again, or mend it"
        )


def _number(what: str, key: str, value: Any, default: float) -> float:
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e6:
        raise ModelError(f"{what} says {key}: {value} in its config.json, where a number of 0 or more belongs; mend it")
    return float(value)


def _reads(what: str, named: Any, of_layers: int, layers: int) -> tuple[int, ...]:
    """Return the layers passed by each state: those named from 0, or as the authors spread them over the target."""
    if named is None and of_layers < 1:
        raise ModelError(f"{what} lacks target_layer_ids in the {DFLASH_KEYS} of its config.json; copy it again")
    if named is None:
        spread = [1 + at * (of_layers - 4) / (layers - 1) for at in range(layers)] if layers > 1 else [of_layers // 2]
        return tuple(round(place) + 1 for place in spread)
    is_list = isinstance(named, list) and bool(named) and all(type(one) is int and one >= 0 for one in named)
    if not is_list:
        raise ModelError(f"{what} says target_layer_ids: {named} in its config.json, where a list of layers belongs")
    return tuple(one + 1 for one in named)
