"""The best token of every row of logits, in two launches: torch reads a large vocabulary's row in few programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, runs_triton

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

KINDS = (torch.bfloat16, torch.float16, torch.float32)
CHUNK, WARPS = 2048, 4  # numbers that a program reads


def is_supported(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels run on a device, for logits of that kind."""
    return dtype in KINDS and runs_triton(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What is added to logits in float32, after the division by a temperature."""

    temperatures: Tensor  # (batch,) float64
    lines: Tensor  # (batch, places, vocabulary) float32
    depths: Tensor  # (batch, n) int64, contiguous: which line is added after each node


def best_of(logits: Tensor, noise: Noise | None = None) -> Tensor:
    """Return argmax over the last dimension of (..., vocabulary), int64: the first of equal ones, or a NaN."""
    if not is_supported(logits.device, logits.dtype):
        return (logits if noise is None else noisy(logits, noise)).argmax(-1)
    greatest, places = _bests_of_chunks(logits.flatten(0, -2), noise)
    best = torch.empty(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    chunks = greatest.shape[1]
    _best_of_all[best.numel(),](
        greatest, places, best, chunks, padded=power_of_two(chunks), num_warps=1, **chained(logits.device)
    )  # fmt: skip
    return best


def noisy(logits: Tensor, noise: Noise) -> Tensor:
    """Return (batch, n, vocabulary): logits over their temperatures, plus noise; float64 stays."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    rows = torch.arange(len(wide), device=wide.device).unsqueeze(1)
    return wide / noise.temperatures.to(wide.dtype).view(-1, 1, 1) + noise.lines[rows, noise.depths]


def go_on_behind(logits: Tensor, state: Tensor, is_live: Tensor, record: Tensor, noise: Noise | None = None) -> None:
    """End a plain round on the device: write its tokens from logits (batch, vocabulary), and where the next one begins.

    `state` (3 * batch,) int64 holds each row's tokens in the cache, how many are new, and the newest; it does not
    change where `is_live` () is false. `record` (batch, any) int64 ends in the best token, and the tokens in the cache
    then.
    """
    greatest, places = _bests_of_chunks(logits, noise)
    batch, chunks = greatest.shape
    assert state.shape == (3 * batch,) and len(record) == batch and record.is_contiguous(), "a line per row"
    _go_on[batch,](
        greatest, places, state, is_live, record, chunks, batch, record.shape[1],
        padded=power_of_two(chunks), num_warps=1, **chained(logits.device),
    )  # fmt: skip


def _bests_of_chunks(logits: Tensor, noise: Noise | None) -> tuple[Tensor, Tensor]:
    """Return (rows, chunks) greatest numbers in float32, and their places, of (rows, vocabulary)."""
    assert logits.stride(1) == 1, "rows that lie together"
    (rows, width), chunks = logits.shape, -(-logits.shape[1] // CHUNK)
    greatest = logits.new_empty((rows, chunks), dtype=torch.float32)
    places = logits.new_empty((rows, chunks), dtype=torch.int64)
    if noise is None:
        _best_of_chunk[chunks, rows](
            logits, greatest, places, width, logits.stride(0), chunks,
            chunk=CHUNK, num_warps=WARPS, **chained(logits.device),
        )  # fmt: skip
        return greatest, places
    assert noise.depths.numel() == rows and noise.lines.is_contiguous() and noise.lines.shape[2] == width, (
        "of its nodes"
    )
    _noisy_best_of_chunk[chunks, rows](
        logits, noise.temperatures, noise.lines, noise.depths, greatest, places, width, logits.stride(0),
        chunks, rows // len(noise.lines), noise.lines.shape[1],
        chunk=CHUNK, num_warps=WARPS, **chained(logits.device),
    )  # fmt: skip
    return greatest, places


@on_device("chunks")
def _best_of_chunk(
    logits: tl.tensor, greatest: tl.tensor, places: tl.tensor, width: tl.tensor, stride: tl.tensor, chunks: tl.tensor,
    chunk: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Write the greatest number of a part of one row, and its place; a NaN is greater than any."""
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * chunk + tl.arange(0, chunk)
    numbers = tl.load(logits + row * stride + column, mask=column < width, other=float("-inf")).to(tl.float32)
    _note_best(numbers, greatest, places, row, chunks, chunk)


@on_device("chunks", "nodes", "line_count", unaligned=("temperatures",))
def _noisy_best_of_chunk(
    logits: tl.tensor, temperatures: tl.tensor, lines: tl.tensor, depths: tl.tensor, greatest: tl.tensor,
    places: tl.tensor, width: tl.tensor, stride: tl.tensor, chunks: tl.tensor, nodes: tl.tensor, line_count: tl.tensor,
    chunk: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row, column = tl.program_id(1).to(tl.int64), tl.program_id(0) * chunk + tl.arange(0, chunk)
    of = row // nodes
    line, is_there = of * line_count + tl.load(depths + row), column < width
    numbers = tl.load(logits + row * stride + column, mask=is_there, other=float("-inf")).to(tl.float32)
    numbers = tl.div_rn(numbers, tl.load(temperatures + of).to(tl.float32)) + tl.load(
        lines + line * width + column, mask=is_there
    )
    _note_best(tl.where(is_there, numbers, float("-inf")), greatest, places, row, chunks, chunk)


@on_device()
def _note_best(
    numbers: tl.tensor, greatest: tl.tensor, places: tl.tensor, row: tl.tensor, chunks: tl.tensor,
    chunk: tl.constexpr,
) -> None:  # fmt: skip
    numbers = tl.where(numbers == numbers, numbers, float("inf"))
    top, place = tl.max(numbers, 0, return_indices=True)
    at = row * chunks + tl.program_id(0)
    tl.store(greatest + at, top)
    tl.store(places + at, (tl.program_id(0) * chunk + place).to(tl.int64))


@on_device()
def _first_best(
    greatest: tl.tensor, places: tl.tensor, row: tl.tensor, chunks: tl.tensor,
    padded: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    part = tl.arange(0, padded)
    tops = tl.load(greatest + row * chunks + part, mask=part < chunks, other=float("-inf"))
    _, best = tl.max(tops, 0, return_indices=True)
    return tl.load(places + row * chunks + best)


@on_device("chunks")
def _best_of_all(
    greatest: tl.tensor, places: tl.tensor, out: tl.tensor, chunks: tl.tensor,
    padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row = tl.program_id(0).to(tl.int64)
    tl.store(out + row, _first_best(greatest, places, row, chunks, padded))


@on_device("chunks", "batch", "columns")
def _go_on(
    greatest: tl.tensor, places: tl.tensor, state: tl.tensor, is_live: tl.tensor, record: tl.tensor, chunks: tl.tensor,
    batch: tl.tensor, columns: tl.tensor,
    padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    let_next_begin(is_chained)
    take_turn(is_chained)
    row = tl.program_id(0).to(tl.int64)
    best, end = _first_best(greatest, places, row, chunks, padded), tl.load(state + row) + 1
    tl.store(record + row * columns + columns - 2, best)
    tl.store(record + row * columns + columns - 1, end)
    if tl.load(is_live):
        tl.store(state + row, end)
        tl.store(state + batch + row, end * 0 + 1)
        tl.store(state + 2 * batch + row, best)
