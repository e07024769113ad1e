"""Attention of a tree's nodes to a key-value cache, split over keys: what a GPU's decoding step hangs on.

Few queries read a long cache, so one program per head would leave most of the device idle. The keys of every head are
shared among several programs, whose parts of the softmax a second launch puts together. The grid depends on shapes
alone; each program finds on the device which keys are its own. So a launch may sit in a CUDA graph and costs what the
text at hand is long, not what the cache could hold.

Source: Dao et al. 2022, arXiv:2205.14135, Sec. 3.1: a softmax in parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .jitted import on_device, power_of_two, processors_of, runs_triton, shared_kib_of

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

WORD = 64  # nodes per word of `bits`
KINDS = (torch.bfloat16, torch.float16, torch.float32)
MOST_SIZE = 256  # of a head
MOST_SPLITS = 64
LEAST_COLUMNS, MOST_COLUMNS = 16, 64  # of keys that a program takes at once
MOST_NUMBERS, MOST_WIDE_NUMBERS = 8192, 1024  # in those keys; wide ones are multiplied in registers, which are few
LEAST_LINES, MOST_LINES = 16, 64  # of queries in a program; the matrix unit takes no fewer
MOST_MIXED = 8192  # numbers in a program's sums, which are registers, too
WARPS = 4


def is_supported(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Return whether the kernel runs on a device, for heads of that size."""
    return dtype in KINDS and 16 <= size <= MOST_SIZE and runs_triton(device)


def attend_tree(
    query: Tensor,
    states: Tensor,
    starts: Tensor,
    bits: Tensor,
    *,
    scale: float,
    kv_heads: int,
    window: int | None = None,
    splits: int | None = None,
) -> Tensor:
    """Mix values for the nodes of one tree per row; never reads the device on the host.

    Node j of row b sees the columns below starts[b], and starts[b] + c where bit c of bits[b, j] is set. A node must
    see something. With a window it sees the last of these alone.

    Args:
        query: (batch, n, heads, size) of bfloat16, float16 or float32; the last dimension contiguous.
        states: (batch, capacity, 2 * kv_heads * size) of the same kind, keys then values, its last dimension likewise.
        starts: (batch,) int64, committed tokens.
        bits: (batch, n, words) int64, contiguous: bit c % 64 of word c // 64, the sign being bit 63.
        scale: what scores are multiplied by.
        kv_heads: query head h reads head h // (heads // kv_heads).
        window: columns that a node sees at most, all bits of a node or more; None: all.
        splits: programs that share the keys of a head; None takes as many as fill the device.

    Returns:
        (batch * n, heads * size), contiguous, of the same kind; sums are float32.
    """
    batch, count, heads, size = query.shape
    capacity, words, groups, wide = states.shape[1], bits.shape[-1], heads // kv_heads, window or 0
    assert query.dtype == states.dtype, "one kind of numbers"
    assert query.stride(-1) == states.stride(-1) == 1, "rows that lie together"
    assert states.shape == (batch, capacity, 2 * kv_heads * size) and heads == groups * kv_heads, "one shape of heads"
    assert bits.is_contiguous() and bits.shape[:2] == (batch, count) and starts.shape == (batch,), "a line per node"
    assert window is None or window >= WORD * words, "a window that no tree outgrows"
    padded = power_of_two(size)
    columns, lines = columns_of(padded, query.dtype), lines_of(count * groups, padded, query.dtype)
    tiles = -(-count * groups // lines)
    if splits is None:
        most = capacity if window is None else min(capacity, window + WORD * words + columns)
        splits = splits_of(batch * kv_heads * tiles, -(-most // columns), processors_of(query.device))
    alone = splits == 1
    out = query.new_empty((batch * count, heads * size))
    parts = out if alone else query.new_empty((batch * count * heads, splits, size), dtype=torch.float32)
    weights = starts if alone else query.new_empty((batch * count * heads, splits, 2), dtype=torch.float32)
    _attend[kv_heads * tiles, splits, batch](
        query, states, starts, bits, parts, weights,
        query.stride(0), query.stride(1), query.stride(2), states.stride(0), states.stride(1),
        count, words, capacity, wide, splits, scale * math.log2(math.e),
        groups=groups, kv_heads=kv_heads, size=size, padded=padded, lines=lines, columns=columns, alone=alone,
        is_windowed=wide > 0, num_warps=WARPS,
        num_stages=stages_of(lines, query.dtype, shared_kib_of(query.device)),
    )  # fmt: skip
    if not alone:
        _combine[batch * count * heads,](
            parts, weights, starts, out, count * heads, words, capacity, wide, splits,
            size=size, padded=padded, parts_padded=power_of_two(splits), columns=columns, is_windowed=wide > 0,
            num_warps=WARPS,
        )  # fmt: skip
    return out


def columns_of(padded: int, dtype: torch.dtype) -> int:
    """Return how many keys a program takes at once, the size of a head being padded to a power of two."""
    most = MOST_WIDE_NUMBERS if dtype == torch.float32 else MOST_NUMBERS
    return min(MOST_COLUMNS, max(LEAST_COLUMNS, most // padded))


def lines_of(rows: int, padded: int, dtype: torch.dtype) -> int:
    """Return how many queries of one key-value head a program takes; float32 has no matrix unit to fill."""
    most = LEAST_LINES if dtype == torch.float32 else min(MOST_LINES, MOST_MIXED // padded)
    return min(most, max(LEAST_LINES, power_of_two(rows)))


def stages_of(lines: int, dtype: torch.dtype, shared_kib: int) -> int:
    """Return how many tiles of keys are on their way at once: what a multiprocessor can hold, of two where it is large.

    Three tiles beside more lines than the fewest take 108 KiB; consumer GPUs have 99 for a program.
    """
    is_wide = lines == MOST_LINES or (lines > LEAST_LINES and shared_kib < 128)
    return 2 if dtype == torch.float32 or is_wide else 3


def splits_of(programs: int, tiles: int, processors: int) -> int:
    """Return how many programs share the keys of a head.

    Args:
        programs: without sharing.
        tiles: of keys that the cache can hold.
        processors: of the device.
    """
    return min(-(-processors // programs), tiles, MOST_SPLITS)


@on_device()
def _reach(
    start: tl.tensor, words: tl.tensor, capacity: tl.tensor, window: tl.tensor, splits: tl.tensor,
    columns: tl.constexpr, is_windowed: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Return from where to where a row's nodes look, and how many of these columns one split takes: whole tiles."""
    reach = tl.minimum(start + 64 * words, capacity).to(tl.int32)
    begin = reach * 0
    if is_windowed:
        begin = tl.maximum(start + 1 - window, 0).to(tl.int32) // columns * columns
    return begin, reach, tl.cdiv(tl.cdiv(reach - begin, columns), splits) * columns


@on_device()
def _taken_in(
    best: tl.tensor, total: tl.tensor, mixed: tl.tensor, asked: tl.tensor, keys: tl.tensor, values: tl.tensor,
    first: tl.tensor, stride: tl.tensor, factor: tl.tensor, start: tl.tensor, reach: tl.tensor, lowest: tl.tensor,
    bits: tl.tensor, is_line: tl.tensor, words: tl.tensor,
    size: tl.constexpr, padded: tl.constexpr, columns: tl.constexpr, masked: tl.constexpr, is_windowed: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Return the greatest score, the weights' sum and the weighted values of the lines, one tile of columns later.

    Args:
        best: (lines,), of scores in powers of two.
        total: (lines,).
        mixed: (lines, padded).
        asked: (lines, padded), the queries.
        keys: address of the head's first.
        values: likewise.
        first: column of the tile.
        stride: between columns.
        factor: of scores.
        start: the columns below are text, which is in everyone's sight.
        reach: the columns from here on are in no one's.
        lowest: (lines,), of the columns in each line's sight, where that is windowed.
        bits: addresses (lines,) of each line's words.
        is_line: (lines,), false for padding.
        words: per line.
        size: of a head.
        padded: a power of two.
        columns: of the tile.
        masked: whether the tile has columns from `start` on.
        is_windowed: whether there is a lowest one.
    """
    place, part = tl.arange(0, columns), tl.arange(0, padded)
    base = first * stride.to(tl.int64)
    key_at = keys + base + place[None, :] * stride + part[:, None]
    value_at = values + base + place[:, None] * stride + part[None, :]
    if masked:
        key = tl.load(key_at, mask=(first + place < reach)[None, :] & (part < size)[:, None], other=0.0)
        value = tl.load(value_at, mask=(first + place < reach)[:, None] & (part < size)[None, :], other=0.0)
    elif size < padded:
        key = tl.load(key_at, mask=(part < size)[:, None], other=0.0)
        value = tl.load(value_at, mask=(part < size)[None, :], other=0.0)
    else:
        key, value = tl.load(key_at), tl.load(value_at)
    scores = tl.dot(asked, key, input_precision="ieee") * factor
    if masked:
        node = first + place - start.to(tl.int32)
        is_node = (node >= 0) & (first + place < reach)
        word = tl.load(bits[:, None] + (node >> 6)[None, :], mask=is_line[:, None] & is_node[None, :], other=0)
        is_seen = (node < 0)[None, :] | (((word >> (node & 63)[None, :].to(tl.int64)) & 1) != 0)
        scores = tl.where(is_seen, scores, float("-inf"))
    if is_windowed:
        scores = tl.where((first + place)[None, :] >= lowest[:, None], scores, float("-inf"))
    latest = tl.maximum(best, tl.max(scores, 1))
    level = tl.where(latest == float("-inf"), 0.0, latest)  # of a line that has seen nothing yet
    weight, faded = tl.exp2(scores - level[:, None]), tl.exp2(best - level)
    total = total * faded + tl.sum(weight, 1)
    mixed = mixed * faded[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return latest, total, mixed


@on_device("count", "words", "capacity", "window", "splits", unaligned=("starts", "bits"))  # neighbours in an input
def _attend(
    query: tl.tensor, states: tl.tensor, starts: tl.tensor, bits: tl.tensor, parts: tl.tensor, weights: tl.tensor,
    query_batch: tl.tensor, query_node: tl.tensor, query_head: tl.tensor, states_batch: tl.tensor, stride: tl.tensor,
    count: tl.tensor, words: tl.tensor, capacity: tl.tensor, window: tl.tensor, splits: tl.tensor, factor: tl.tensor,
    groups: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, lines: tl.constexpr,
    columns: tl.constexpr, alone: tl.constexpr, is_windowed: tl.constexpr,
) -> None:  # fmt: skip
    """Write one split's part of the mix of some lines; a line is a node and one of the `groups` heads it has here.

    Alone, the split writes the mix itself, (batch, count, heads, size). Else it writes (batch, count, heads, splits,
    size) of weighted values, and the greatest score and the weights' sum beside each; nothing where it has no columns.
    """
    tiles = tl.cdiv(count * groups, lines)
    head, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    split, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start = tl.load(starts + row)
    begin, reach, share = _reach(start, words, capacity, window, splits, columns, is_windowed)
    first = begin + split * share
    if first < reach:
        last = tl.minimum(first + share, reach)
        line, part = tile * lines + tl.arange(0, lines), tl.arange(0, padded)
        is_line, node, asker = line < count * groups, line // groups, head * groups + line % groups
        is_asked = is_line[:, None] & (part < size)[None, :]
        asked_at = query + row * query_batch + (node * query_node + asker * query_head)[:, None] + part[None, :]
        asked = tl.load(asked_at, mask=is_asked, other=0.0)
        keys = states + row * states_batch + head * size
        values = keys + kv_heads * size
        words_at = bits + (row * count + node) * words
        best = tl.full((lines,), float("-inf"), tl.float32)
        total = tl.zeros((lines,), tl.float32)
        mixed = tl.zeros((lines, padded), tl.float32)
        lowest = line
        if is_windowed:  # a node's place in the text is what the text is long, and how many nodes its path has
            path = tl.zeros((lines,), tl.int64)
            for word in range(0, words):
                bit = tl.load(words_at + word, mask=is_line, other=0)[:, None] >> tl.arange(0, 64)[None, :].to(tl.int64)
                path += tl.sum(bit & 1, 1)
            lowest = (start + path - window).to(tl.int32)
        tree = tl.minimum(last, tl.maximum(first, start.to(tl.int32) // columns * columns))
        for column in range(first, tree, columns):
            best, total, mixed = _taken_in(
                best, total, mixed, asked, keys, values, column, stride, factor, start, reach, lowest,
                words_at, is_line, words, size, padded, columns, False, is_windowed,
            )  # fmt: skip
        for column in range(tree, last, columns):
            best, total, mixed = _taken_in(
                best, total, mixed, asked, keys, values, column, stride, factor, start, reach, lowest,
                words_at, is_line, words, size, padded, columns, True, is_windowed,
            )  # fmt: skip
        place = (row * count + node) * (groups * kv_heads) + asker
        if alone:
            mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(parts + place[:, None] * size + part[None, :], mixed.to(parts.dtype.element_ty), mask=is_asked)
        else:
            place = place * splits + split
            tl.store(parts + place[:, None] * size + part[None, :], mixed, mask=is_asked)
            tl.store(weights + place * 2, best, mask=is_line)
            tl.store(weights + place * 2 + 1, total, mask=is_line)


@on_device("lines", "words", "capacity", "window", "splits", unaligned=("starts",))
def _combine(
    parts: tl.tensor, weights: tl.tensor, starts: tl.tensor, out: tl.tensor, lines: tl.tensor, words: tl.tensor,
    capacity: tl.tensor, window: tl.tensor, splits: tl.tensor,
    size: tl.constexpr, padded: tl.constexpr, parts_padded: tl.constexpr, columns: tl.constexpr,
    is_windowed: tl.constexpr,
) -> None:  # fmt: skip
    """Write (size,) of one head of one node: its splits' parts put together.

    Args:
        parts: (batch * lines, splits, size), weighted values.
        weights: (batch * lines, splits, 2), greatest scores and sums.
        starts: (batch,).
        out: (batch * lines, size).
        lines: of one row of the batch: nodes times heads.
        words: of a node's bits.
        capacity: of the cache.
        window: columns in sight of a node.
        splits: of the keys.
        size: of a head.
        padded: a power of two.
        parts_padded: likewise, of `splits`.
        columns: of a tile.
        is_windowed: whether there is a window.
    """
    line = tl.program_id(0).to(tl.int64)
    start = tl.load(starts + line // lines)
    begin, reach, share = _reach(start, words, capacity, window, splits, columns, is_windowed)
    split, part = tl.arange(0, parts_padded), tl.arange(0, padded)
    is_live = begin + split * share < reach  # others wrote nothing
    best = tl.load(weights + (line * splits + split) * 2, mask=is_live, other=float("-inf"))
    total = tl.load(weights + (line * splits + split) * 2 + 1, mask=is_live, other=0.0)
    is_mixed = is_live[:, None] & (part < size)[None, :]
    mixed = tl.load(parts + (line * splits + split)[:, None] * size + part[None, :], mask=is_mixed, other=0.0)
    top = tl.max(best, 0)
    weight = tl.exp2(best - tl.where(top == float("-inf"), 0.0, top))
    sums = tl.sum(weight * total, 0)
    result = tl.sum(weight[:, None] * mixed, 0) / tl.where(sums > 0, sums, 1.0)
    tl.store(out + line * size + part, result.to(out.dtype.element_ty), mask=part < size)
