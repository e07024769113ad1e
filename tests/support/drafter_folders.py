"""Folders of random drafters beside a random target, as training writes them, and what loading them allocates."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor
from transformers import LlamaForCausalLM

from spectune.runtime.models.config_file import OWN
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.drafter_shapes import (
    ExitShape,
    RecyclingShape,
    block_config,
    exit_config,
    recycling_config,
    recycling_tensors,
)
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel
from spectune.training.cards import save_weights

from .allocator import count_bytes
from .tiny_blocks import block_shape_of, block_weights
from .tiny_exits import WIDTH, exit_weights
from .tiny_heads import READS, head_weights, layer_config

Kind = Literal["eagle", "eagle3", "medusa", "ctc", "specformer", "exit", "recycling"]
SUCCESSORS = 8  # as published
KINDS: tuple[Kind, ...] = get_args(Kind)


def save_drafter(kind: Kind, target: LlamaForCausalLM, folder: Path) -> Path:
    """Write a random drafter of a kind for a target of four layers or more; return its folder."""
    folder.mkdir()
    save_weights(folder, *_drafter(kind, target))
    return folder


def counted_drafter(folder: Path, target: LeanModel, dtype: str) -> tuple[CausalModel, int]:
    """Return a folder's drafter, and what torch's allocator handed out for it; mapped files count."""
    found: list[CausalModel] = []

    def load() -> None:
        found.append(load_drafter(str(folder), target, dtype=dtype))
        gc.collect()

    held = count_bytes(load).left_bytes
    return found[0], held


def _drafter(kind: Kind, target: LlamaForCausalLM) -> tuple[Mapping[str, Tensor], Mapping[str, object]]:
    """Return its tensors and its configuration."""
    if kind == "exit":
        shape = ExitShape(layers=2, width=WIDTH, target="0")
        return exit_weights(int(target.config.hidden_size)), exit_config(shape)
    if kind == "recycling":
        recycled = RecyclingShape(successors=SUCCESSORS, target="0" * 64)
        return recycling_tensors(recycled), recycling_config(recycled)
    if kind == "eagle" or kind == "eagle3":
        config = layer_config(target).to_dict() | {OWN: {"reads": list(READS[kind]), "target": ""}}
        return head_weights(kind, target), config
    return block_weights(kind, target), block_config(replace(block_shape_of(kind, target), target="0"))
