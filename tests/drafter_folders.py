"""Folders of random drafters beside a random target, as training writes them, and what loading them allocates."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from transformers import LlamaForCausalLM

from spectune.profiler.allocator import count_bytes
from spectune.runtime.models.block_shape import block_config, block_shape, is_block
from spectune.runtime.models.drafter import BLOCKS, load_recycling
from spectune.runtime.models.eagle import EagleHead
from spectune.runtime.models.eagle_shape import OWN, head_shape, is_head, read_tensors
from spectune.runtime.models.exit import ExitModel
from spectune.runtime.models.exit_shape import ExitShape, exit_config, exit_shape
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.lean import LeanModel
from spectune.runtime.models.recycling_shape import (
    RecyclingShape,
    is_recycling,
    recycling_config,
    recycling_tensors,
)
from spectune.training.cards import save_weights

from .tiny_blocks import block_shape_of, block_weights
from .tiny_exits import WIDTH, exit_weights
from .tiny_heads import READS, head_weights, layer_config

Kind = Literal["eagle", "eagle3", "medusa", "ctc", "specformer", "exit", "recycling"]
SUCCESSORS = 8  # as published
KINDS: tuple[Kind, ...] = get_args(Kind)


def save_drafter(kind: Kind, target: LlamaForCausalLM, folder: Path) -> Path:
    """Write a random drafter of a kind for a target of four layers or more; return its folder."""
    folder.mkdir()
    if kind == "exit":
        weights = exit_weights(int(target.config.hidden_size))
        save_weights(folder, weights, exit_config(ExitShape(layers=2, width=WIDTH, target="0")))
    elif kind == "recycling":
        recycled = RecyclingShape(successors=SUCCESSORS, target="0" * 64)
        save_weights(folder, recycling_tensors(recycled), recycling_config(recycled))
    elif kind == "eagle" or kind == "eagle3":
        config = layer_config(target).to_dict() | {OWN: {"reads": list(READS[kind]), "target": ""}}
        save_weights(folder, head_weights(kind, target), config)
    else:
        shape = replace(block_shape_of(kind, target), target="0")
        save_weights(folder, block_weights(kind, target), block_config(shape))
    return folder


def counted_drafter(folder: Path, target: LeanModel) -> tuple[CausalModel, int]:
    """Return a folder's drafter, and what torch's allocator handed out for it; nothing is mapped from its file."""
    found: list[CausalModel] = []

    def load() -> None:
        tensors = {name: weight.clone() for name, weight in read_tensors(folder).items()}
        if is_block(folder):
            shape = block_shape(folder)
            found.append(BLOCKS[shape.kind](tensors, shape, target))
        elif is_recycling(folder):
            found.append(load_recycling(folder, target))
        elif is_head(folder):
            found.append(EagleHead(tensors, head_shape(folder), target))
        else:
            found.append(ExitModel(tensors, exit_shape(folder), target))
        del tensors
        gc.collect()

    held = count_bytes(load).left_bytes
    return found[0], held
