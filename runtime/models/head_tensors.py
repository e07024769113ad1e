"""The tensors of a head of EAGLE's forms, their shapes, and which tokens it can draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ...errors import ModelError
from .config_keys import require_one_layer
from .eagle_shape import HeadShape
from .stored_tensors import Shape, TensorHeader, held_tensors, require_tensors, stored_tensors
from .target_sizes import TargetSizes, require_reads

DRAFTED, CAN_DRAFT = "d2t", "t2d"  # offsets from draft tokens to tokens; whether each token can be drafted
TABLES = (DRAFTED, CAN_DRAFT)
INTEGERS = ("I64", "I32", "I16", "int64", "int32", "int16")
BOOLEANS = ("BOOL", "bool", "U8", "uint8", *INTEGERS)


def require_head_fits(folder: Path, shape: HeadShape, target: TargetSizes) -> None:
    """Raise ModelError unless a head's files hold what is computed with its target; reads headers and tables."""
    what, stored = f"the head {folder}", stored_tensors(folder)
    _require(what, stored, shape, target)
    draft_ids(what, stored_tables(folder), shape, target.vocabulary)


def require_weights_fit(weights: Mapping[str, Tensor], shape: HeadShape, target: TargetSizes) -> None:
    """Raise ModelError unless a head's tensors are those that are computed with its target."""
    _require("the head", held_tensors(weights), shape, target)


def draft_ids(what: str, tables: Mapping[str, Tensor], shape: HeadShape, vocabulary: int) -> Tensor | None:
    """Return (draft vocabulary,) ids that a head can draft, None for all, by `TABLES`.

    ModelError where an id is out of range or comes twice, or both tables disagree.
    """
    can_draft = tables[CAN_DRAFT].bool() if shape.form == "eagle3" and CAN_DRAFT in tables else None
    if shape.form != "eagle3" or DRAFTED not in tables:
        if can_draft is not None and not bool(can_draft.all()):
            raise ModelError(f"{what} says by t2d which tokens it drafts and lacks d2t; finish the download")
        return None
    offsets = tables[DRAFTED].long()
    ids = offsets + torch.arange(len(offsets), device=offsets.device)
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
        raise ModelError(
            f"{what} maps {len(ids)} draft tokens to ids from {int(ids.min())} to {int(ids.max())} by d2t, and the "
            f"target has {vocabulary} tokens; the head is for another vocabulary"
        )
    distinct = len(set(ids.tolist()))
    if distinct < len(ids):
        raise ModelError(
            f"{what} maps {len(ids)} draft tokens to {distinct} ids by d2t; each must have its own, copy or "
            "train it again"
        )
    known = can_draft.nonzero().flatten() if can_draft is not None else None
    if known is not None and not torch.equal(ids.sort().values, known.to(ids.device)):
        raise ModelError(
            f"{what} says two things: d2t maps to {len(ids)} ids and t2d names {len(known)}, which are not the same; "
            "copy or train it again"
        )
    if known is None and len(ids) < vocabulary and not offsets.any():
        raise ModelError(
            f"{what} has a d2t of {len(ids)} zeros, so that it drafts the first {len(ids)} ids of {vocabulary} alone; "
            "copy or train it again"
        )
    return ids


def head_tensors(shape: HeadShape, target: TargetSizes) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """Return the shapes of a head's tensors by their published names: the needed ones, and the optional ones."""
    config, hidden, first = shape.config, target.hidden, shape.form == "eagle"
    heads, inner = config.num_attention_heads, config.intermediate_size
    size = config.head_dim or config.hidden_size // heads
    queries, pairs = heads * size, (config.num_key_value_heads or heads) * size
    wide = hidden if first else 2 * hidden
    layer: dict[str, Shape] = {
        "self_attn.q_proj.weight": (queries, wide),
        "self_attn.k_proj.weight": (pairs, wide),
        "self_attn.v_proj.weight": (pairs, wide),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }
    biases: dict[str, Shape] = {f"self_attn.{one}_proj.bias": (pairs,) for one in "kv"}
    biases["self_attn.q_proj.bias"] = (queries,)
    joined = 2 if first else len(shape.reads_of(target.layers))
    needed: dict[str, Shape] = {"fc.weight": (hidden, joined * hidden)}
    if not first:
        layer |= {"input_layernorm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
        drafted = getattr(config, "draft_vocab_size", None) or target.vocabulary
        needed |= {"norm.weight": (hidden,), "lm_head.weight": (drafted, hidden)}
    name = shape.begins
    needed |= {name + one: size for one, size in layer.items()}
    optional = {name + one: size for one, size in biases.items()}
    optional |= {"fc.bias": (hidden,), "embed_tokens.weight": (target.vocabulary, hidden)}
    return needed, optional


def _require(what: str, stored: Mapping[str, TensorHeader], shape: HeadShape, target: TargetSizes) -> None:
    if shape.config.hidden_size != target.hidden:
        raise ModelError(
            f"{what} says hidden_size: {shape.config.hidden_size} in its config.json, and the hidden states of this "
            f"target have {target.hidden} numbers; give the head of this target"
        )
    beside = getattr(shape.config, "target_hidden_size", None)
    if beside not in (None, target.hidden):
        raise ModelError(
            f"{what} says target_hidden_size: {beside} in its config.json, and the hidden states of this target have "
            f"{target.hidden} numbers; give the head of this target"
        )
    require_one_layer(what, shape.layers, target.layers)
    require_reads(what, shape.reads_of(target.layers), target)
    needed, optional = head_tensors(shape, target)
    if shape.form == "eagle3" and DRAFTED in stored and getattr(shape.config, "draft_vocab_size", None) is None:
        needed["lm_head.weight"] = (*stored[DRAFTED].shape[:1], target.hidden)
    require_tensors(what, stored, needed, optional=optional, others=TABLES if shape.form == "eagle3" else ())
    _require_biases(what, stored, shape)
    if shape.form == "eagle3":
        _require_tables(what, stored, needed["lm_head.weight"][0], target.vocabulary)


def _require_biases(what: str, stored: Mapping[str, TensorHeader], shape: HeadShape) -> None:
    """Raise ModelError where a head has only some biases of its attention, or names biases that it lacks."""
    names = [f"{shape.begins}self_attn.{one}_proj.bias" for one in "qkv"]
    there = [name for name in names if name in stored]
    if there and len(there) < len(names):
        missing = next(name for name in names if name not in stored)
        raise ModelError(f"{what} holds {there[0]} and lacks {missing}; biases of queries, keys and values go together")
    for key in ("attention_bias", "qkv_bias", "bias"):
        is_there = bool(there) or (key == "bias" and "fc.bias" in stored)
        if getattr(shape.config, key, None) and not is_there:
            raise ModelError(f"{what} says {key}: true in its config.json and lacks {names[0]}; finish the download")


def _require_tables(what: str, stored: Mapping[str, TensorHeader], drafted: int, vocabulary: int) -> None:
    for name, count, kinds in ((DRAFTED, drafted, INTEGERS), (CAN_DRAFT, vocabulary, BOOLEANS)):
        if name in stored and (stored[name].shape != (count,) or stored[name].dtype not in kinds):
            seen = " x ".join(map(str, stored[name].shape))
            raise ModelError(
                f"{what}: {name} is {seen} of {stored[name].dtype}, and its config.json and this target need {count} "
                f"of {kinds[0]}; give the head of this target"
            )
    if DRAFTED not in stored and drafted != vocabulary:
        raise ModelError(
            f"{what} knows {drafted} tokens and the target {vocabulary}, and no d2t says which; give the head of this "
            "target"
        )


def stored_tables(folder: Path) -> dict[str, Tensor]:
    """Return those of a head's `TABLES` that its files hold."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            there = set(file.keys())
            found |= {name: file.get_tensor(name) for name in TABLES if name in there}
    return found
