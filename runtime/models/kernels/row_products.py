"""Products of few rows with what stands before and behind them, one launch each: y = W p(x) + bias + residual.

p is nothing, a norm, or a gate. A decoding step is bound by reading W, which lies (out, in) and is read once, in long
runs. One row is multiplied in registers; 2 to 16 rows go to the matrix unit, which takes 16. A norm's factor 1 / rms(x)
is one number per row and leaves the sum:

    W (x / rms(x) * weight) = 1 / rms(x) * W (x * weight)

So nothing waits for it, and x is read once beside W. Sums are float32, and y is rounded once. What the matrix unit
reads of p(x) is rounded once, too, to the format of W; a row multiplied in registers is not.

Source: Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4 (the norm); Shazeer 2020, arXiv:2002.05202, Eq. 6 (the gate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..norm import Norm
from .jitted import on_device

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

LINES = 16  # rows that the matrix unit takes; more are a library's
HALVES = (torch.bfloat16, torch.float16)
KINDS = (*HALVES, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How a product is cut: what a program takes of W at once, and how many such tiles are on their way."""

    columns: int  # of the result, lines of W; a power of two, for several rows at least 16
    depth: int  # numbers of each line; likewise
    warps: int
    stages: int


ONE_ROW = (  # from many small programs to fewer whose tiles overlap; the numbers of x are read once in each
    Tile(columns=4, depth=1024, warps=4, stages=1),
    Tile(columns=8, depth=512, warps=4, stages=3),
    Tile(columns=16, depth=512, warps=8, stages=3),
)
SEVERAL_ROWS = (
    Tile(columns=16, depth=256, warps=4, stages=4),
    Tile(columns=32, depth=128, warps=4, stages=5),
    Tile(columns=64, depth=128, warps=4, stages=4),
)


def tiles_for(rows: int, dtype: torch.dtype, *, is_normed: bool) -> tuple[Tile, ...]:
    """Return the ways to cut a product of so many rows; none where the kernels are not for it.

    Several rows of float32 have no matrix unit, and float16 may not hold x * weight before it is divided by rms(x).
    """
    if rows == 1 and dtype in KINDS:
        return ONE_ROW
    if 1 < rows <= LINES and dtype in HALVES and not (is_normed and dtype == torch.float16):
        return SEVERAL_ROWS
    return ()


def multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    *,
    tile: Tile,
    norm: Norm | None = None,
    is_gated: bool = False,
) -> Tensor:
    """Return W p(x) + bias + residual, (rows, out), of the kind of x, written over the residual where there is one.

    Args:
        x: (rows, in), contiguous, of at most 16 rows; with a gate (rows, 2 * in), gates, then ups.
        weight: (out, in), contiguous, of the kind of x.
        bias: (out,).
        residual: (rows, out), contiguous, of the kind of x.
        tile: one of those that `tiles_for` gives.
        norm: p, of a weight (in,) in any float format.
        is_gated: whether p is silu(gate) * up.
    """
    (rows, _), (outs, width) = x.shape, weight.shape
    assert x.shape[1] == (2 * width if is_gated else width) and rows <= LINES, "few rows of the product's width"
    assert norm is None or (norm.weight.shape == (width,) and norm.weight.is_contiguous() and not is_gated), "one p"
    assert x.is_contiguous() and weight.is_contiguous() and x.dtype == weight.dtype, "lines that lie together"
    out = x.new_empty((rows, outs)) if residual is None else residual
    assert out.is_contiguous() and out.dtype == x.dtype and out.shape == (rows, outs), "a residual of the same shape"
    scale, eps = (weight, 0.0) if norm is None else (norm.weight, norm.eps)
    kernel = _multiply_row if rows == 1 else _multiply_rows
    kernel[-(-outs // tile.columns),](
        x, weight, scale, weight if bias is None else bias, out, eps, rows, outs, width,
        is_normed=norm is not None, is_gated=is_gated, has_bias=bias is not None, adds=residual is not None,
        columns=tile.columns, depth=tile.depth, lines=LINES, stages=tile.stages,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out


@on_device()
def _opened(
    at: tl.tensor, is_there: tl.tensor, width: tl.tensor,
    is_gated: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return numbers of x in float32, gated where they are; 0 where there are none."""
    given = tl.load(at, mask=is_there, other=0.0).to(tl.float32)
    if is_gated:
        up = tl.load(at + width, mask=is_there, other=0.0).to(tl.float32)
        given = given / (1.0 + tl.exp(-given)) * up
    return given


@on_device("rows")
def _multiply_row(
    x: tl.tensor, weight: tl.tensor, scale: tl.tensor, bias: tl.tensor, out: tl.tensor, eps: tl.tensor,
    rows: tl.tensor, outs: tl.tensor, width: tl.tensor,
    is_normed: tl.constexpr, is_gated: tl.constexpr, has_bias: tl.constexpr, adds: tl.constexpr,
    columns: tl.constexpr, depth: tl.constexpr, lines: tl.constexpr, stages: tl.constexpr,
) -> None:  # fmt: skip
    """Write some columns of the only row; `rows` and `lines` are the other kernel's."""
    column, place = tl.program_id(0) * columns + tl.arange(0, columns), tl.arange(0, depth)
    is_column = column < outs
    weight_at = weight + column.to(tl.int64)[:, None] * width + place[None, :]
    sums, squares = tl.zeros((columns, depth), tl.float32), tl.zeros((depth,), tl.float32)
    for start in tl.range(0, width, depth, num_stages=stages):
        is_there = start + place < width
        taken = tl.load(weight_at + start, mask=is_column[:, None] & is_there[None, :], other=0.0).to(tl.float32)
        given = _opened(x + start + place, is_there, width, is_gated)
        if is_normed:
            squares += given * given
            given *= tl.load(scale + start + place, mask=is_there, other=0.0).to(tl.float32)
        sums += taken * given[None, :]
    result = tl.sum(sums, 1)
    if is_normed:
        result *= tl.rsqrt(tl.sum(squares, 0) / width + eps)
    if has_bias:
        result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    if adds:
        result += tl.load(out + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(out + column, result.to(out.dtype.element_ty), mask=is_column)


@on_device("rows")
def _multiply_rows(
    x: tl.tensor, weight: tl.tensor, scale: tl.tensor, bias: tl.tensor, out: tl.tensor, eps: tl.tensor,
    rows: tl.tensor, outs: tl.tensor, width: tl.tensor,
    is_normed: tl.constexpr, is_gated: tl.constexpr, has_bias: tl.constexpr, adds: tl.constexpr,
    columns: tl.constexpr, depth: tl.constexpr, lines: tl.constexpr, stages: tl.constexpr,
) -> None:  # fmt: skip
    """Write some columns of all rows, which lie beside each other in the matrix unit, padded."""
    column, place, line = tl.program_id(0) * columns + tl.arange(0, columns), tl.arange(0, depth), tl.arange(0, lines)
    is_column, is_line = column < outs, line < rows
    weight_at = weight + column.to(tl.int64)[:, None] * width + place[None, :]
    x_at = x + line[None, :] * (2 * width if is_gated else width) + place[:, None]
    sums, squares = tl.zeros((columns, lines), tl.float32), tl.zeros((depth, lines), tl.float32)
    for start in tl.range(0, width, depth, num_stages=stages):
        is_there = start + place < width
        taken = tl.load(weight_at + start, mask=is_column[:, None] & is_there[None, :], other=0.0)
        given = _opened(x_at + start, is_there[:, None] & is_line[None, :], width, is_gated)
        if is_normed:
            squares += given * given
            given *= tl.load(scale + start + place, mask=is_there, other=0.0).to(tl.float32)[:, None]
        sums = tl.dot(taken, given.to(taken.dtype), sums)
    if is_normed:
        sums *= tl.rsqrt(tl.sum(squares, 0) / width + eps)[None, :]
    at, is_out = out + line[None, :] * outs + column[:, None], is_column[:, None] & is_line[None, :]
    if has_bias:
        sums += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[:, None]
    if adds:
        sums += tl.load(at, mask=is_out, other=0.0).to(tl.float32)
    tl.store(at, sums.to(out.dtype.element_ty), mask=is_out)
