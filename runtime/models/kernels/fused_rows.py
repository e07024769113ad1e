"""What a layer does to rows between its products, one launch each: a GPU's short step is mostly launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .jitted import on_device, power_of_two

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

HEADS_AT_ONCE = 4  # of a program of one warp, which so has its numbers to itself
GATES_AT_ONCE = 512
NUMBERS_PER_WARP = 512  # of a row that is normed
MOST_WARPS = 16


def turn_and_store(
    qkv: Tensor,
    cosine: Tensor,
    sine: Tensor,
    states: Tensor,
    rows: Tensor,
    weight: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    eps: float = 0.0,
) -> None:
    """Turn queries and keys by their positions in place, and store keys and values; the sums are float32.

    Turned is x * cosine + roll(x, size / 2) * sine, and before that x / rms(x) * weight where there is a weight.

    Args:
        qkv: (n, (heads + 2 * kv_heads) * size), contiguous.
        cosine: (..., size), n lines in all that lie evenly.
        sine: likewise, with the signs that the roll wants.
        states: (..., 2 * kv_heads * size), contiguous, of the kind of `qkv`.
        rows: (n,) int64, each line's own of the states' rows.
        weight: (heads + kv_heads, size) of any float format, contiguous: a norm's, head by head.
        heads: of queries.
        kv_heads: of keys, and of values.
        eps: added to the mean square of what is normed.
    """
    count, lanes = len(qkv), heads + 2 * kv_heads
    size = qkv.shape[1] // lanes
    cosine, sine, flat = cosine.view(count, size), sine.view(count, size), states.view(-1, 2 * kv_heads * size)
    assert qkv.is_contiguous() and qkv.dtype == flat.dtype and rows.shape == (count,), "lines that lie together"
    assert size % 2 == 0 and cosine.stride(1) == sine.stride(1) == 1, "two halves, and a line of turns for each row"
    is_normed = weight is not None
    assert weight is None or (weight.shape == (heads + kv_heads, size) and weight.is_contiguous()), "a line per head"
    _turn_and_store[count, -(-lanes // HEADS_AT_ONCE)](
        qkv, cosine, sine, flat, rows, qkv if weight is None else weight, eps, cosine.stride(0), sine.stride(0),
        heads=heads, kv_heads=kv_heads, half=size // 2, padded=power_of_two(size // 2), at_once=HEADS_AT_ONCE,
        is_normed=is_normed, num_warps=1,
    )  # fmt: skip


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, (rows, width), of gates and ups (rows, 2 * width), contiguous; rounded once."""
    count, width = len(gate_up), gate_up.shape[1] // 2
    assert gate_up.is_contiguous(), "lines that lie together"
    out = gate_up.new_empty((count, width))
    _gated[count, -(-width // GATES_AT_ONCE)](gate_up, out, width, at_once=GATES_AT_ONCE, num_warps=2)
    return out


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) * weight, (rows, width), in float32 and rounded once to the kind of x.

    Args:
        x: (rows, width), contiguous.
        weight: (width,), of any float format: a wider one gives what Gemma does, too.
        eps: added to the mean square.

    Source: Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4.
    """
    count, width = x.shape
    assert x.is_contiguous() and weight.shape == (width,) and weight.is_contiguous(), "lines that lie together"
    out = torch.empty_like(x)
    padded = power_of_two(width)
    warps = min(MOST_WARPS, max(1, padded // NUMBERS_PER_WARP))
    _normed[count,](x, weight, out, eps, width=width, padded=padded, num_warps=warps)
    return out


@on_device()
def _turn_and_store(
    qkv: tl.tensor, cosine: tl.tensor, sine: tl.tensor, states: tl.tensor, rows: tl.tensor, weight: tl.tensor,
    eps: tl.tensor, cosine_stride: tl.tensor, sine_stride: tl.tensor,
    heads: tl.constexpr, kv_heads: tl.constexpr, half: tl.constexpr, padded: tl.constexpr, at_once: tl.constexpr,
    is_normed: tl.constexpr,
) -> None:  # fmt: skip
    """Norm and turn some heads of one row, both halves in the same threads, and store those that are keys or values."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(rows + row)
    lane, part = tl.program_id(1) * at_once + tl.arange(0, at_once), tl.arange(0, padded)
    is_part = (part < half)[None, :]
    is_there = (lane < heads + 2 * kv_heads)[:, None] & is_part
    is_turned, is_stored = (lane < heads + kv_heads)[:, None] & is_part, (lane >= heads)[:, None] & is_there
    at = qkv + row * ((heads + 2 * kv_heads) * 2 * half) + lane[:, None] * (2 * half) + part[None, :]
    left, right = tl.load(at, mask=is_there, other=0.0), tl.load(at + half, mask=is_there, other=0.0)
    turn = part[None, :] + lane[:, None] * 0  # read once per head, where its numbers are
    cosine_at, sine_at = cosine + row * cosine_stride + turn, sine + row * sine_stride + turn
    left_cosine = tl.load(cosine_at, mask=is_there, other=0.0).to(tl.float32)
    right_cosine = tl.load(cosine_at + half, mask=is_there, other=0.0).to(tl.float32)
    left_sine = tl.load(sine_at, mask=is_there, other=0.0).to(tl.float32)
    right_sine = tl.load(sine_at + half, mask=is_there, other=0.0).to(tl.float32)
    wide_left, wide_right = left.to(tl.float32), right.to(tl.float32)
    if is_normed:
        factor = tl.rsqrt(tl.sum(wide_left * wide_left + wide_right * wide_right, 1) / (2 * half) + eps)[:, None]
        weight_at = weight + lane[:, None] * (2 * half) + part[None, :]
        wide_left *= factor * tl.load(weight_at, mask=is_turned, other=0.0).to(tl.float32)
        wide_right *= factor * tl.load(weight_at + half, mask=is_turned, other=0.0).to(tl.float32)
    turned_left = (wide_left * left_cosine + wide_right * left_sine).to(left.dtype)
    turned_right = (wide_right * right_cosine + wide_left * right_sine).to(left.dtype)
    left, right = tl.where(is_turned, turned_left, left), tl.where(is_turned, turned_right, right)
    tl.store(at, left, mask=is_turned)
    tl.store(at + half, right, mask=is_turned)
    state_at = states + target * (2 * kv_heads * 2 * half) + (lane - heads)[:, None] * (2 * half)
    tl.store(state_at + part[None, :], left, mask=is_stored)
    tl.store(state_at + half + part[None, :], right, mask=is_stored)


@on_device()
def _gated(
    gate_up: tl.tensor, out: tl.tensor, width: tl.tensor,
    at_once: tl.constexpr,
) -> None:  # fmt: skip
    """Write some columns of one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * at_once + tl.arange(0, at_once)
    at = gate_up + row * 2 * width + column
    gate = tl.load(at, mask=column < width, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=column < width, other=0.0).to(tl.float32)
    mixed = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + column, mixed.to(out.dtype.element_ty), mask=column < width)


@on_device()
def _normed(
    x: tl.tensor, weight: tl.tensor, out: tl.tensor, eps: tl.tensor,
    width: tl.constexpr, padded: tl.constexpr,
) -> None:  # fmt: skip
    """Write one row."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, padded)
    scale = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    line = tl.load(x + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    line = line * tl.rsqrt(tl.sum(line * line, 0) / width + eps)
    tl.store(out + row * width + column, (line * scale).to(out.dtype.element_ty), mask=column < width)
