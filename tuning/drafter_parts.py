"""What a drafter beside its target is made of, read from its folder: headers and config.json, no tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..planner.memory.heads import DrafterParts
from ..profiler.records.architecture import Architecture
from ..profiler.safetensors_file import read_header
from ..runtime.models.block_shape import block_shape, is_block
from ..runtime.models.config_file import written_config
from ..runtime.models.eagle_shape import LAYER, HeadForm, head_form, is_head
from ..runtime.models.exit_shape import is_exit
from ..runtime.models.recycling_shape import is_recycling, recycling_shape

HALF = "BF16"  # as headers name bfloat16
KEPT = {  # how the names of tensors begin that a head of EAGLE's forms keeps; folders may hold more
    "eagle": ("fc.", "embed_tokens.", "layers.0."),
    "eagle3": ("fc.", "embed_tokens.", "midlayer.", "layers.0.", "norm.", "lm_head.", "d2t"),
}


def drafter_parts(folder: Path, target: Architecture) -> DrafterParts | None:
    """Return the parts of a folder's drafter beside a target, None for an uncounted kind; ModelError if broken."""
    if is_exit(folder):
        sizes, stored = _tensors(folder)
        return DrafterParts(form="exit", target=target, sizes=sizes, stored_dtype=stored)
    if is_recycling(folder):
        kept = recycling_shape(folder).successors
        return DrafterParts(form="recycling", target=target, sizes={}, reads=(target.layers,), successors=kept)
    if is_block(folder):
        return _block(folder, target)
    return _head(folder, head_form(folder), target) if is_head(folder) else None


def _block(folder: Path, target: Architecture) -> DrafterParts | None:
    shape, (sizes, stored) = block_shape(folder), _tensors(folder)
    if shape.kind not in ("medusa", "ctc", "specformer"):
        return None
    return DrafterParts(form=shape.kind, target=target, sizes=sizes, stored_dtype=stored, reads=shape.reads)


def _head(folder: Path, shape: HeadForm, target: Architecture) -> DrafterParts:
    found, stored = _tensors(folder, KEPT[shape.form])
    sizes = {name.replace(shape.begins, LAYER[shape.form], 1): size for name, size in found.items()}
    config = written_config(folder)
    return DrafterParts(
        form=shape.form,
        target=target,
        sizes=sizes,
        head_dim=int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]),
        stored_dtype=stored,
        reads=shape.reads_of(target.layers),
    )


def _tensors(folder: Path, begins: Sequence[str] = ("",)) -> tuple[Mapping[str, tuple[int, ...]], str]:
    """Return the sizes of a folder's tensors by name, and "bfloat16" where all its matrices are stored so."""
    sizes: dict[str, tuple[int, ...]] = {}
    formats: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        for name, seen in read_header(path).items():
            if name.startswith(tuple(begins)):
                sizes[name] = seen.shape
                formats |= {seen.dtype} if len(seen.shape) == 2 else set()
    return sizes, "bfloat16" if formats == {HALF} else ""
