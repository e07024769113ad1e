"""Blocks of GGUF's quantised formats as our kernels' weights: the same numbers, their scales in float16.

Source: ggml, ggml-common.h, the structs block_q4_0 to block_q6_K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .kernels.packed_dots import EIGHT_BITS, EIGHT_BITS_FINE, FOUR_BITS
from .packed import PackedWeight, Whole, packed

Number = TypeVar("Number", bound=np.generic)

Numbers = NDArray[np.float32]
EIGHTS, SIXTEENTHS = 256 // 32, 256 // 16  # groups of a block of 256 numbers
HALF = 2  # bytes of a float16
ANY = "Q8_0"  # what other formats are rounded to


def packed_blocks(stored: Whole, form: str) -> PackedWeight:
    """Return a weight (out, in) of quantised blocks (out, bytes); formats without a packing are rounded to 8 bits."""
    from gguf import GGMLQuantizationType, dequantize, quantize

    if form in UNPACKED:
        return UNPACKED[form](stored)
    return UNPACKED[ANY](quantize(dequantize(stored, GGMLQuantizationType[form]), GGMLQuantizationType[ANY]))


def _scale(blocks: Whole, first: int) -> Numbers:
    """Return the float16 number at a byte of every block, (out, blocks, 1)."""
    return np.ascontiguousarray(blocks[..., first : first + HALF]).view(np.float16).astype(np.float32)


def _halves(stored: Whole) -> Whole:
    """Return lower, then upper halves of bytes, (out, blocks, 2 * bytes)."""
    return np.concatenate((stored & 15, stored >> 4), axis=-1)


def _flat(numbers: NDArray[Number]) -> NDArray[Number]:
    """Return (out, all the rest)."""
    return numbers.reshape(len(numbers), -1)


def _of_q4(stored: Whole, *, has_least: bool) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 20 if has_least else 18)
    scales = _scale(blocks, 0)
    leasts = -_scale(blocks, HALF) if has_least else 8 * scales
    numbers = _flat(_halves(blocks[..., -16:]))
    return packed(numbers, scales[..., 0], FOUR_BITS, leasts=leasts[..., 0])


def _of_q5_0(stored: Whole) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 22)
    fifth = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    return packed(
        _flat((_halves(blocks[..., 6:]) | fifth << 4).astype(np.uint8)), _scale(blocks, 0)[..., 0], EIGHT_BITS, zero=16
    )


def _of_q8_0(stored: Whole) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 34)
    return packed(_flat((blocks[..., 2:] ^ 128).astype(np.uint8)), _scale(blocks, 0)[..., 0], EIGHT_BITS, zero=128)


def _of_q4_k(stored: Whole) -> PackedWeight:
    from gguf.quants import Q4_K

    blocks = stored.reshape(len(stored), -1, 144)
    scales, leasts = (
        each.reshape(*blocks.shape[:2], EIGHTS) for each in Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))
    )
    numbers = _flat(_halves(blocks[..., 16:].reshape(len(stored), -1, 32)))
    return packed(
        numbers, _flat(_scale(blocks, 0) * scales), FOUR_BITS, leasts=_flat(_scale(blocks, HALF) * leasts)
    )  # fmt: skip


def _of_q6_k(stored: Whole) -> PackedWeight:
    blocks = stored.reshape(len(stored), -1, 210)
    lower = _halves(blocks[..., :128].reshape(len(stored), -1, 64))
    upper = blocks[..., 128:192].reshape(len(stored), -1, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = _scale(blocks, 208) * blocks[..., 192:208].view(np.int8)
    return packed((_flat(lower) | _flat(upper) << 4).astype(np.uint8), _flat(scales), EIGHT_BITS_FINE, zero=32)


UNPACKED: Mapping[str, Callable[[Whole], PackedWeight]] = {
    "Q4_0": partial(_of_q4, has_least=False),
    "Q4_1": partial(_of_q4, has_least=True),
    "Q5_0": _of_q5_0,
    "Q8_0": _of_q8_0,
    "Q4_K": _of_q4_k,
    "Q6_K": _of_q6_k,
}
