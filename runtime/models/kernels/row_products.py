"""Products of few rows with the work around them, one launch each: y = g(W p(x) + bias) + residual.

p is a norm or nothing; g is a gate, silu of the first half of W's lines times the other half, or nothing. Reading W
(out, in) bounds a decoding step, so it is read once, in long runs. A norm's factor 1 / rms(x) leaves the sum:

    W (x / rms(x) * weight) = 1 / rms(x) * W (x * weight)

So nothing waits for it, and x is read once beside W. W waits for no other kernel: a program loads its first part before
x is ready (see chain.py). Sums are float32, and y is rounded once.

Source: Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4 (the norm); Shazeer 2020, arXiv:2002.05202, Eq. 6 (the gate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..norm import Norm
from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

LINES = 4  # rows that are multiplied in registers; more are a library's, whose products use the matrix unit
RUN = 8  # numbers of a line that a thread reads at once
KINDS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """What a program of a product takes of W at once."""

    columns: int  # of the result, lines of W; a power of two
    warps: int

    @property
    def depth(self) -> int:
        """Numbers of each line: every thread reads a run of each."""
        return 32 * self.warps * RUN


TILES = (Tile(columns=4, warps=4), Tile(columns=4, warps=8), Tile(columns=8, warps=4))


def tiles_for(rows: int, dtype: torch.dtype) -> tuple[Tile, ...]:
    """Return the ways to cut a product of so many rows; none where the kernel does not take it."""
    return TILES if 1 <= rows <= LINES and dtype in KINDS else ()


def multiplied(
    x: Tensor,  # (rows, in), of at most 4 rows
    weight: Tensor,  # (out, in), of the kind of x; with a gate (2 * out, in): gates, then ups
    bias: Tensor | None,  # (out,) or (2 * out,)
    residual: Tensor | None,  # (rows, out), of the kind of x; overwritten
    *,
    tile: Tile,  # one of `tiles_for`
    norm: Norm | None = None,  # p, with a weight (in,) of any float format
    is_gated: bool = False,
) -> Tensor:
    """Return g(W p(x) + bias) + residual, (rows, out), of the kind of x; all tensors are contiguous."""
    (rows, width), outs = x.shape, weight.shape[0] // 2 if is_gated else weight.shape[0]
    assert weight.shape[1] == width and rows <= LINES, "few rows of the product's width"
    assert norm is None or (norm.weight.shape == (width,) and norm.weight.is_contiguous()), "a norm of that width"
    assert x.is_contiguous() and weight.is_contiguous() and x.dtype == weight.dtype, "lines that lie together"
    out = x.new_empty((rows, outs)) if residual is None else residual
    assert out.is_contiguous() and out.dtype == x.dtype and out.shape == (rows, outs), "a residual of the same shape"
    scale, eps = (weight, 0.0) if norm is None else (norm.weight, norm.eps)
    _multiply[-(-outs // tile.columns),](
        x, weight, scale, weight if bias is None else bias, out, eps, rows, outs, width,
        is_normed=norm is not None, is_gated=is_gated, has_bias=bias is not None, adds=residual is not None,
        columns=tile.columns, depth=tile.depth, lines=power_of_two(rows), run=RUN, num_warps=tile.warps, num_stages=1,
        **chained(x.device),
    )  # fmt: skip
    return out


@on_device("rows")
def _multiply(
    x: tl.tensor, weight: tl.tensor, scale: tl.tensor, bias: tl.tensor, out: tl.tensor, eps: tl.tensor,
    rows: tl.tensor, outs: tl.tensor, width: tl.tensor,
    is_normed: tl.constexpr, is_gated: tl.constexpr, has_bias: tl.constexpr, adds: tl.constexpr,
    columns: tl.constexpr, depth: tl.constexpr, lines: tl.constexpr, run: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Write some columns of all rows, `lines` at most; a thread sums its runs, and all threads' sums come last."""
    let_next_begin(is_chained)
    column, place = tl.program_id(0) * columns + tl.arange(0, columns), tl.arange(0, depth)
    is_column = column < outs
    weight_at = weight + column.to(tl.int64)[:, None] * width + place[None, :]
    beyond = outs.to(tl.int64) * width  # from a gate to what it lets through
    is_taken = is_column[:, None] & (place < width)[None, :]
    ahead = tl.load(weight_at, mask=is_taken, other=0.0)
    ahead_up = ahead
    if is_gated:
        ahead_up = tl.load(weight_at + beyond, mask=is_taken, other=0.0)
    sums = (tl.zeros((columns, depth // run), tl.float32),) * lines
    ups, squares = sums, (tl.zeros((depth // run,), tl.float32),) * lines
    take_turn(is_chained)
    for start in range(0, width, depth):
        taken, taken_up, is_there = ahead.to(tl.float32), ahead_up.to(tl.float32), start + place < width
        is_taken = is_column[:, None] & (start + depth + place < width)[None, :]
        ahead = tl.load(weight_at + start + depth, mask=is_taken, other=0.0)
        if is_gated:
            ahead_up = tl.load(weight_at + beyond + start + depth, mask=is_taken, other=0.0)
        factor = taken  # read below where rows are normed
        if is_normed:
            factor = tl.load(scale + start + place, mask=is_there, other=0.0).to(tl.float32)
        later, later_ups, later_squares = sums[:0], ups[:0], squares[:0]
        for row in tl.static_range(lines):
            is_given = is_there & (place * 0 + row < rows)
            given = tl.load(x + row * width + start + place, mask=is_given, other=0.0).to(tl.float32)
            if is_normed:
                later_squares += (squares[row] + tl.sum(tl.reshape(given * given, (depth // run, run)), 1),)
                given *= factor
            later += (sums[row] + tl.sum(tl.reshape(taken * given[None, :], (columns, depth // run, run)), 2),)
            if is_gated:
                product = tl.reshape(taken_up * given[None, :], (columns, depth // run, run))
                later_ups += (ups[row] + tl.sum(product, 2),)
        sums = later
        if is_gated:
            ups = later_ups
        if is_normed:
            squares = later_squares
    for row in tl.static_range(lines):
        is_written = is_column & (column * 0 + row < rows)
        result, share = tl.sum(sums[row], 1), 1.0
        if is_normed:
            share = tl.rsqrt(tl.sum(squares[row], 0) / width + eps)
            result *= share
        if has_bias:
            result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
        if is_gated:
            up = tl.sum(ups[row], 1) * share
            if has_bias:
                up += tl.load(bias + outs + column, mask=is_column, other=0.0).to(tl.float32)
            result = result / (1.0 + tl.exp(-result)) * up
        if adds:
            result += tl.load(out + row * outs + column, mask=is_written, other=0.0).to(tl.float32)
        tl.store(out + row * outs + column, result.to(out.dtype.element_ty), mask=is_written)
