"""Formats of public drafters that spectune does not read, known by the contents of their folders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import ModelError
from ...profiler.gguf_config import EMBEDDING
from ...profiler.gguf_file import GgufTensor, read_gguf
from ...profiler.records.architecture import QUANTISED
from .config_file import OWN, is_dflash, own_kind, written_config, written_in
from .drafter_shapes import is_block, is_exit, is_recycling
from .eagle_shape import JOINS, has_layer_of_head, is_head
from .kernels.packed_dots import EIGHT_BITS, EIGHT_BITS_FINE, FOUR_BITS, Packing, can_pack

SUPPORTED = (
    "supported are language models, heads of the forms EAGLE-1, EAGLE-2 and EAGLE-3 as SafeAILab, SpecForge, AngelSlim "
    "and ModelOpt write them (fc.weight and one layer named layers.0 or midlayer), DFlash drafters of the architecture "
    "DFlashDraftModel, and drafters of `spectune train`; give one of these"
)
KEYS: Mapping[str, str] = {
    "speculators_model_type": "speculators",
    "speculators_config": "speculators",
    "speculators_version": "speculators",
    "transformer_layer_config": "speculators",
    "dflash_config": "DFlash of another architecture",
    "medusa_num_heads": "Medusa with language-model heads of its own",
    "hydra_num_heads": "Hydra",
    "redrafter_predict_n_tokens": "ReDrafter",
}  # of config.json
ARCHITECTURES: Mapping[str, str] = {
    "dflash": "DFlash of another architecture",
    "dspark": "DSpark",
    "medusa": "Medusa with language-model heads of its own",
    "hydra": "Hydra",
    "mlpspeculator": "MLPSpeculator",
    "peagle": "P-EAGLE",
    "speculator": "speculators",
}  # parts of the name of an architecture
PICKLED = ("*.bin", "*.pt", "*.pth")


def require_known_format(folder: Path) -> None:
    """Raise ModelError, with the format, where a folder holds a drafter that is not read."""
    if not folder.is_dir() or own_kind(folder) is not None:
        return
    written = written_config(folder)
    if is_dflash(written):
        return
    named = format_of(written)
    if named is not None:
        raise ModelError(f"the drafter {folder} is in the format {named}, which spectune does not read; {SUPPORTED}")
    is_named = any("eagle" in name.lower() for name in _architectures(written)) or has_layer_of_head(folder)
    if not is_named or is_head(folder):
        return
    if not any(folder.glob("*.safetensors")):
        pickled = [path.name for pattern in PICKLED for path in sorted(folder.glob(pattern))]
        raise ModelError(
            f"the head {folder} holds {pickled[0] if pickled else 'no weights'} and no safetensors; save its "
            "tensors as model.safetensors, by safetensors.torch.save_file"
        )
    raise ModelError(f"the head {folder} lacks the tensor {JOINS}, which joins the target's states; {SUPPORTED}")


def drafter_described(written: Mapping[str, Any]) -> str | None:
    """Return what a configuration by itself describes where that drafts beside a target; None of a language model."""
    if is_dflash(written):
        return "a block drafter"
    if (named := format_of(written)) is not None:
        return f"a drafter in the format {named}"
    if OWN in written or written.get("draft_vocab_size") or any("eagle" in n.lower() for n in _architectures(written)):
        return "a head"
    return None


def format_of(written: Mapping[str, Any]) -> str | None:
    """Return the name of a format that is not read, with its algorithm; None where no key names one."""
    name = next((KEYS[key] for key in KEYS if written.get(key) is not None), None)
    if name is None:
        architectures = "".join(_architectures(written)).lower()
        name = next((one for part, one in ARCHITECTURES.items() if part in architectures), None)
    nested = written.get("speculators_config")
    algorithm = written.get("speculators_model_type") or (nested.get("algorithm") if isinstance(nested, dict) else None)
    return f"{name} ({algorithm})" if name is not None and isinstance(algorithm, str) else name


def _architectures(written: Mapping[str, Any]) -> list[str]:
    named = written.get("architectures")
    return [one for one in named if isinstance(one, str)] if isinstance(named, list) else []


Role = Literal["draft", "head", "block", "self"]
CALLED: Mapping[Role, str] = {"head": "a head", "block": "a block drafter", "self": "an exit"}


def draft_role(folder: Path) -> Role:
    """Return a folder's role, see `profiler.records.role`; ModelError for a drafter of a format that is not read."""
    require_known_format(folder)
    if is_exit(folder):
        return "self"
    if is_block(folder) or is_recycling(folder):
        return "block"
    return "head" if is_head(folder) else "draft"


def require_no_drafter(place: Path) -> None:
    """Raise ModelError where that lies at a place which drafts beside a target, and a language model belongs there."""
    if place.is_dir():
        found = CALLED.get(draft_role(place))
    else:
        found = drafter_described(written_in(place)) if place.suffix == ".json" else None
    if found is not None:
        raise ModelError(
            f"{place} holds {found}, which drafts beside a target and is no language model; give a language "
            f"model there, and this as --drafter NAME={place}"
        )


HEAD = "output.weight"
HALF_BYTES = 2  # of a number in bfloat16, and of a scale
PACKINGS: dict[str, Packing] = {
    "Q4_0": FOUR_BITS,
    "Q4_1": FOUR_BITS,
    "Q4_K": FOUR_BITS,
    "Q6_K": EIGHT_BITS_FINE,
}  # others are packed in `EIGHT_BITS`, see `gguf_weights.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBytes:
    """Bytes of memory."""

    weights: int  # a tied head counts once, as the table of embeddings
    tied_head: int  # which is kept again, packed; 0 where the file has a head of its own


def packed_bytes(path: Path) -> PackedBytes:
    """Return the memory of packed weights: matrices in few bits with their scales, all else in bfloat16."""
    tensors = read_gguf(path).tensors
    weights = sum(_bytes_of(tensor, is_packed=name != EMBEDDING) for name, tensor in tensors.items())
    tied = EMBEDDING in tensors and HEAD not in tensors
    return PackedBytes(weights=weights, tied_head=_bytes_of(tensors[EMBEDDING], is_packed=True) if tied else 0)


def own_packed(location: Path, dtype: str) -> str:
    """Return a drafter's number format beside a target in `dtype`: its file's where both are packed."""
    if dtype not in QUANTISED or location.suffix != ".gguf":
        return dtype
    stored = read_gguf(location).format.lower()
    return stored if stored in QUANTISED else dtype


def _bytes_of(tensor: GgufTensor, *, is_packed: bool) -> int:
    count = math.prod(tensor.shape)
    if not is_packed or len(tensor.shape) != 2 or not can_pack(*tensor.shape):
        return HALF_BYTES * count
    packing = PACKINGS.get(tensor.format, EIGHT_BITS)
    lines = 2 if packing.has_least else 1
    return count * packing.bits // 8 + lines * HALF_BYTES * count // packing.group
