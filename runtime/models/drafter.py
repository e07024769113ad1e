"""Load what a drafter folder holds: a language model, a head, a block drafter, an exit, or successors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ...planner.records.image_ids import IMAGE_IDS
from ...profiler.records.model import ModelIdentity
from .block import BlockHead, MedusaHeads, RoundHead
from .block import tensor_shapes as medusa_tensors
from .ctc import CtcHead
from .ctc import tensor_shapes as ctc_tensors
from .dflash import DFlash
from .dflash import tensor_shapes as dflash_tensors
from .drafter_shapes import TENSORS as MADE_OF
from .drafter_shapes import (
    BlockShape,
    Kind,
    block_shape,
    exit_shape,
    is_block,
    is_exit,
    is_recycling,
    recycling_shape,
    require_made_for,
)
from .eagle import EagleHead
from .eagle_shape import head_shape, is_head
from .exit import ExitModel, require_exit_layer
from .exit import tensor_shapes as exit_tensors
from .formats import Role, draft_role, own_packed, require_known_format
from .forward import CausalModel, ForwardInput
from .graphed import as_loaded
from .head_tensors import require_head_fits
from .kv_cache import KeyValueCache
from .loading import load_config, load_model
from .recycling import RecyclingHead
from .specformer import SpecFormer
from .specformer import tensor_shapes as specformer_tensors
from .stored_tensors import Shape, read_tensors, require_tensors, stored_tensors
from .tapped import require_lean
from .target_sizes import TargetSizes, require_reads, sizes_in
from .vocabulary import FittedModel, require_one_vocabulary

BlockKind = type[MedusaHeads] | type[CtcHead] | type[SpecFormer] | type[DFlash]
BLOCKS: dict[Kind, BlockKind] = {"medusa": MedusaHeads, "ctc": CtcHead, "specformer": SpecFormer, "dflash": DFlash}
BLOCK_TENSORS: dict[Kind, Callable[[TargetSizes, BlockShape], dict[str, Shape]]] = {
    "medusa": medusa_tensors,
    "ctc": ctc_tensors,
    "specformer": specformer_tensors,
    "dflash": dflash_tensors,
}


def load_drafter(location: str, target: CausalModel, *, dtype: str, device: str = "cpu") -> CausalModel:
    """Return the drafter in the fastest form known, from a folder, or a hub id of a language model.

    `target` is loaded with this dtype on this device. Between packed formats a GGUF file remains in the one that it
    has. ModelError where it cannot be loaded, or a head does not fit the target.
    """
    require_known_format(Path(location))
    if is_block(Path(location)):
        return load_block(Path(location), target)
    if is_exit(Path(location)):
        return load_exit(Path(location), target)
    if is_recycling(Path(location)):
        return load_recycling(Path(location), target)
    if is_head(Path(location)):
        return load_head(Path(location), target)
    own = own_packed(Path(location), dtype)
    model, gallery = load_model(location, dtype=own, device=device), target.gallery
    if model.vocabulary != target.vocabulary:
        model = FittedModel(model, target.vocabulary)
    return model if gallery is None else BlindModel(model, gallery.tokens.placeholder)


def load_head(folder: Path, target: CausalModel) -> EagleHead:
    """Return a head with its target's number format and device; ModelError if unreadable or unfit."""
    return EagleHead(read_tensors(folder), head_shape(folder), require_lean(target))


def load_block(folder: Path, target: CausalModel) -> BlockHead:
    """Return a block drafter with its target's number format and device; ModelError if unreadable or unfit."""
    shape = block_shape(folder)
    return BLOCKS[shape.kind](read_tensors(folder), shape, require_lean(target))


def load_exit(folder: Path, target: CausalModel) -> ExitModel:
    """Return a target's first layers, shared, and their imitation network; ModelError if unreadable or unfit."""
    return ExitModel(read_tensors(folder), exit_shape(folder), require_lean(target))


def load_recycling(folder: Path, target: CausalModel) -> RecyclingHead:
    """Return the drafter of a target's successors; ModelError where it, or the target's states, cannot be read."""
    return RecyclingHead(require_lean(target), recycling_shape(folder).successors)


def role_of(model: CausalModel) -> Role:
    """Return the role in which a loaded drafter's forwards are timed."""
    own = as_loaded(model)
    if isinstance(own, RoundHead):
        return "block"
    if isinstance(own, ExitModel):
        return "self"
    return "head" if isinstance(own, EagleHead) else "draft"


def require_drafter_of(folder: Path, target: ModelIdentity) -> None:
    """Raise ModelError where a drafter does not fit a target or is not computed; reads no weights."""
    require_known_format(folder)
    what = f"the drafter {folder}"
    if is_block(folder):
        shape = block_shape(folder)
        if shape.target:  # a public drafter does not say whose it is
            require_made_for(shape.target, target, what, shape.kind)
    elif is_exit(folder):
        leaves = exit_shape(folder)
        require_made_for(leaves.target, target, what, "exit", "--exit-layer", str(leaves.layers))
    elif is_recycling(folder):
        require_made_for(recycling_shape(folder).target, target, what, "recycling")
    else:
        own = head_shape(folder).target if is_head(folder) else ""
        if own:  # a public head does not say whose it is
            require_made_for(own, target, what, "eagle")
        require_one_vocabulary(target.location, str(folder), may_be_padded=not is_head(folder))
    require_computable(folder, target.location)


def require_described(folder: Path) -> None:
    """Raise ModelError where the config.json of a drafter beside a target requires what is computed for no target."""
    if is_head(folder):
        head_shape(folder)
    elif is_block(folder):
        block_shape(folder)
    elif is_exit(folder):
        exit_shape(folder)
    elif is_recycling(folder):
        recycling_shape(folder)


def require_computable(folder: Path, target: str) -> None:
    """Raise ModelError where a drafter beside its target is not computed as its files say, or not with this target.

    A language model always passes. `target` is a folder, a GGUF file, or a config.json.
    """
    if draft_role(folder) == "draft":
        return
    sizes = sizes_in(load_config(target), target)
    if is_head(folder):
        require_head_fits(folder, head_shape(folder), sizes)
        return
    what, stored = f"the drafter {folder}", stored_tensors(folder)
    if is_block(folder):
        block = block_shape(folder)
        require_reads(what, block.reads, sizes)
        require_tensors(what, stored, BLOCK_TENSORS[block.kind](sizes, block))
    elif is_exit(folder):
        leaves = exit_shape(folder)
        require_exit_layer(leaves, sizes)
        require_tensors(what, stored, exit_tensors(sizes, leaves))
    else:
        recycling_shape(folder)
        require_tensors(what, stored, {}, others=MADE_OF)


class BlindModel:
    """Any causal language model, with a token it knows in place of every part of an image."""

    gallery = None

    def __init__(self, model: CausalModel, placeholder: int) -> None:
        self.regime, self.dtype, self.device, self.attention = model.regime, model.dtype, model.device, model.attention
        self.reads_trees: bool = getattr(model, "reads_trees", False)  # where a captured forward tells by them
        self.vocabulary, self.longest_context = model.vocabulary, model.longest_context
        self._model, self._placeholder = model, placeholder

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._model.new_cache(slots, capacity)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
        told = step.tokens.masked_fill(step.tokens >= IMAGE_IDS, self._placeholder)
        return self._model.forward(replace(step, tokens=told, packed=None), cache)
