"""The memory of a GGUF file's weights where they are run as they are stored; reads no weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ...profiler.gguf_config import EMBEDDING
from ...profiler.gguf_file import GgufTensor, read_gguf
from ...profiler.records.architecture import QUANTISED
from .kernels.packed_dots import EIGHT_BITS, EIGHT_BITS_FINE, FOUR_BITS, Packing, can_pack

HEAD = "output.weight"
HALF_BYTES = 2  # of a number in bfloat16, and of a scale
PACKINGS: dict[str, Packing] = {
    "Q4_0": FOUR_BITS,
    "Q4_1": FOUR_BITS,
    "Q4_K": FOUR_BITS,
    "Q6_K": EIGHT_BITS_FINE,
}  # others are packed in `EIGHT_BITS`, see `gguf_blocks.py`


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
