"""Drafters that the demo lacks, written for `vllm_exports.py`: a padded table, named layers, heads of form EAGLE."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

PADDING = 64  # rows
BIAS = 0.5  # large beside what it is added to: one that counted would change every draft


def write_padded(model: Path, out: Path) -> tuple[int, int]:
    """Write a model whose table of tokens has rows of zeros behind its own; return its rows and those of the first."""
    shutil.copytree(model, out)
    file, described = out / "model.safetensors", _described(model)
    rows = int(described["vocab_size"])
    tensors = {
        name: torch.cat([tensor, tensor.new_zeros(PADDING, tensor.shape[1])]) if tensor.shape[0] == rows else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({**described, "vocab_size": rows + PADDING}))
    return rows + PADDING, rows


def write_eagle(target: Path, out: Path, *, has_bias: bool) -> None:
    """Write a random head of form EAGLE for a Llama target, as vLLM names them; equal but for the bias."""
    described = _described(target)
    hidden, inner, each = described["hidden_size"], described["intermediate_size"], described["head_dim"]
    queries, keys = described["num_attention_heads"] * each, described["num_key_value_heads"] * each
    shapes = {
        "fc": (hidden, 2 * hidden),
        "layers.0.self_attn.q_proj": (queries, hidden),
        "layers.0.self_attn.k_proj": (keys, hidden),
        "layers.0.self_attn.v_proj": (keys, hidden),
        "layers.0.self_attn.o_proj": (hidden, queries),
        "layers.0.mlp.gate_proj": (inner, hidden),
        "layers.0.mlp.up_proj": (inner, hidden),
        "layers.0.mlp.down_proj": (hidden, inner),
    }
    random = torch.Generator().manual_seed(0)
    tensors = {f"{name}.weight": 0.02 * torch.randn(*shape, generator=random) for name, shape in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(hidden)
    if has_bias:
        tensors["fc.bias"] = BIAS * torch.randn(hidden, generator=random)
    out.mkdir()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({**described, "num_hidden_layers": 1}))


def write_named(head: Path, out: Path) -> None:
    """Write an EAGLE-3 head whose config.json names the layers it reads as engines read them there."""
    shutil.copytree(head, out)
    described = _described(head)
    named = {"eagle_aux_hidden_state_layer_ids": described["spectune"]["reads"]}
    (out / "config.json").write_text(json.dumps({**described, "eagle_config": named}))


def _described(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((model / "config.json").read_text())
    return found
