"""A layer's work on rows between its products, one launch each: a GPU's short step is mostly launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

GATES_AT_ONCE = 512
NUMBERS_PER_WARP = 512  # of a row that is normed
MOST_WARPS = 16


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, (rows, width), of gates and ups (rows, 2 * width), contiguous; rounded once."""
    count, width = len(gate_up), gate_up.shape[1] // 2
    assert gate_up.is_contiguous(), "lines that lie together"
    out = gate_up.new_empty((count, width))
    _gated[count, -(-width // GATES_AT_ONCE)](
        gate_up, out, width, at_once=GATES_AT_ONCE, num_warps=2, **chained(gate_up.device)
    )  # fmt: skip
    return out


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) * weight, (rows, width) contiguous, in float32 and rounded once to the kind of x.

    Source: Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4; with a wider weight Gemma's.
    """
    count, width = x.shape
    assert x.is_contiguous() and weight.shape == (width,) and weight.is_contiguous(), "lines that lie together"
    out = torch.empty_like(x)
    padded = power_of_two(width)
    warps = min(MOST_WARPS, max(1, padded // NUMBERS_PER_WARP))
    _normed[count,](x, weight, out, eps, width=width, padded=padded, num_warps=warps, **chained(x.device))
    return out


@on_device()
def _gated(
    gate_up: tl.tensor, out: tl.tensor, width: tl.tensor,
    at_once: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * at_once + tl.arange(0, at_once)
    at = gate_up + row * 2 * width + column
    gate = tl.load(at, mask=column < width, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=column < width, other=0.0).to(tl.float32)
    mixed = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + column, mixed.to(out.dtype.element_ty), mask=column < width)


@on_device()
def _normed(
    x: tl.tensor, weight: tl.tensor, out: tl.tensor, eps: tl.tensor,
    width: tl.constexpr, padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, padded)
    scale = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    line = tl.load(x + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    line = line * tl.rsqrt(tl.sum(line * line, 0) / width + eps)
    tl.store(out + row * width + column, (line * scale).to(out.dtype.element_ty), mask=column < width)
