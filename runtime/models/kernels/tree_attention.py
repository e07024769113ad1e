"""Attention of a tree's nodes to a key-value cache, split over keys: what a GPU's decoding step hangs on.

Few queries read a long cache, so one program per head would leave most of the device idle. The keys of every head are
shared among several programs, whose parts of the softmax a second launch puts together. The grid depends on shapes
alone; each program finds on the device which keys are its own. So a launch may sit in a CUDA graph and costs what the
text at hand is long, not what the cache could hold.

Queries and keys are turned, and normed where a family does that, by whoever reads them, and the program that reads the
new nodes' keys stores them. What is in the cache already waits for nobody: each program's first keys and values are on
their way before the projection in front of it is done (see chain.py).

Source: Dao et al. 2022, arXiv:2205.14135, Sec. 3.1: a softmax in parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chain import chained, let_next_begin, take_turn
from .jitted import on_device, power_of_two, processors_of, runs_triton
from .tree_cuts import MOST_SIZE, WARPS, cut_of

if TYPE_CHECKING:
    import triton.language as tl  # from the first launch on it is there

WORD = 64  # nodes per word of `bits`
KINDS = (torch.bfloat16, torch.float16, torch.float32)


def is_supported(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Return whether the kernel runs on a device, for heads of that size."""
    return dtype in KINDS and 16 <= size <= MOST_SIZE and runs_triton(device)


def attend_tree(
    qkv: Tensor,
    states: Tensor,
    starts: Tensor,
    bits: Tensor,
    columns: Tensor,
    positions: Tensor,
    turns: Tensor,
    weight: Tensor | None = None,
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    eps: float = 0.0,
    window: int | None = None,
    hides_first: bool = False,
    splits: int | None = None,
) -> Tensor:
    """Store the nodes' keys and values and mix values for them; never reads the device on the host.

    Node j of row b sees the columns below starts[b], and starts[b] + c where bit c of bits[b, j] is set. A node must
    see something. With a window it sees the last of these alone. What is cached lies left of all that is new in a row.
    Queries and keys are x * cosine + roll(x, size / 2) * sine, and before that x / rms(x) * weight where there is a
    weight, in float32 and rounded once.

    Args:
        qkv: (batch * n, (heads + 2 * kv_heads) * size) of bfloat16, float16 or float32, contiguous: queries, keys,
            values.
        states: (batch, capacity, 2 * kv_heads * size) of the same kind, keys then values; rows that lie together.
        starts: (batch,) int64, committed tokens.
        bits: (batch, n, words) int64, contiguous: bit c % 64 of word c // 64, the sign being bit 63.
        columns: (batch, n) int64, contiguous, where the nodes are stored; those that nobody sees may share one.
        positions: (batch, n) int64; beyond the table of turns they are its last.
        turns: (places, 2 * size), contiguous: cosines, then sines with the signs that the roll wants.
        weight: (heads + kv_heads, size) of any float format, contiguous: a norm's, head by head.
        heads: of queries.
        kv_heads: of keys, and of values; query head h reads head h // (heads // kv_heads).
        scale: what scores are multiplied by.
        eps: added to the mean square of what is normed.
        window: columns that a node sees at most, all bits of a node or more; None: all.
        hides_first: whether column 0 is seen by the node that is stored there alone.
        splits: programs that share the keys of a head; None takes as many as fill the device.

    Returns:
        (batch * n, heads * size), contiguous, of the same kind; sums are float32.

    Source: Su et al. 2021, arXiv:2104.09864, Eq. 34 (the turns); Zhang, Sennrich 2019, arXiv:1910.07467, Eq. 4.
    """
    (batch, count, words), capacity, groups, wide = bits.shape, states.shape[1], heads // kv_heads, window or 0
    lanes = heads + 2 * kv_heads
    size = qkv.shape[1] // lanes
    assert qkv.dtype == states.dtype and qkv.is_contiguous() and len(qkv) == batch * count, "one kind, a row per node"
    assert states.shape == (batch, capacity, 2 * kv_heads * size) and heads == groups * kv_heads, "one shape of heads"
    assert states.stride(-1) == 1 and size % 2 == 0, "rows that lie together, of two halves"
    assert bits.is_contiguous() and starts.shape == (batch,), "a line per node"
    assert columns.shape == positions.shape == (batch, count), "a place per node"
    assert columns.is_contiguous() and turns.is_contiguous(), "that lie together"
    assert turns.shape[1] == 2 * size and (weight is None or weight.is_contiguous()), "turns of the heads' size"
    assert window is None or window >= WORD * words, "a window that no tree outgrows"
    padded = power_of_two(size)
    cut = cut_of(
        count=count, groups=groups, heads=batch * kv_heads, padded=padded, dtype=qkv.dtype, capacity=capacity,
        seen=None if window is None else window + WORD * words, processors=processors_of(qkv.device), splits=splits,
    )  # fmt: skip
    splits, alone = cut.splits, cut.splits == 1
    out = qkv.new_empty((batch * count, heads * size))
    parts = out if alone else qkv.new_empty((batch * count * heads, splits, size), dtype=torch.float32)
    weights = starts if alone else qkv.new_empty((batch * count * heads, splits, 2), dtype=torch.float32)
    _attend[kv_heads * cut.tiles, splits, batch](
        qkv, states, starts, bits, columns, positions, turns, qkv if weight is None else weight, parts, weights,
        eps, scale * math.log2(math.e), states.stride(0), states.stride(1), positions.stride(0), positions.stride(1),
        count, words, capacity, wide, splits, len(turns),
        heads=heads, kv_heads=kv_heads, size=size, padded=padded, lines=cut.lines, columns=cut.columns,
        nodes=cut.nodes, alone=alone, is_windowed=wide > 0, is_normed=weight is not None,
        hides_first=hides_first, num_warps=cut.warps, num_stages=1, **chained(qkv.device),
    )  # fmt: skip
    if not alone:
        _combine[batch * count * heads,](
            parts, weights, out, splits,
            size=size, padded=padded, parts_padded=power_of_two(splits), num_warps=WARPS, **chained(qkv.device),
        )  # fmt: skip
    return out


@on_device()
def _turned(
    at: tl.tensor, partner_at: tl.tensor, weight_at: tl.tensor, partner_weight_at: tl.tensor, is_there: tl.tensor,
    cosine: tl.tensor, sine: tl.tensor, eps: tl.tensor,
    size: tl.constexpr, axis: tl.constexpr, is_normed: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return heads, normed where they are and turned, in the format that they are read in.

    Args:
        at: addresses of their numbers; a head lies along `axis`.
        partner_at: of those half a head away.
        weight_at: of a norm's weights.
        partner_weight_at: likewise.
        is_there: false for padding.
        cosine: that belong to them.
        sine: likewise, signed.
        eps: of the norm.
        size: of a head.
        axis: 0 or 1.
        is_normed: whether they are.
    """
    given, partner = tl.load(at, mask=is_there, other=0.0), tl.load(partner_at, mask=is_there, other=0.0)
    x, y = given.to(tl.float32), partner.to(tl.float32)
    if is_normed:
        share = tl.expand_dims(tl.rsqrt(tl.sum(x * x, axis) / size + eps), axis)
        x *= share * tl.load(weight_at, mask=is_there, other=0.0).to(tl.float32)
        y *= share * tl.load(partner_weight_at, mask=is_there, other=0.0).to(tl.float32)
    return (x * cosine + y * sine).to(given.dtype)


@on_device()
def _seen(
    bits: tl.tensor, node: tl.tensor, is_line: tl.tensor, is_node: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Return (lines, any): whether each line's bits have each node's.

    Args:
        bits: addresses (lines,) of each line's words.
        node: (any,) int32.
        is_line: (lines,), false for padding.
        is_node: (any,), false where there is no bit.
    """
    word = tl.load(bits[:, None] + (node >> 6)[None, :], mask=is_line[:, None] & is_node[None, :], other=0)
    return ((word >> (node & 63)[None, :].to(tl.int64)) & 1) != 0


@on_device()
def _taken_in(
    best: tl.tensor, total: tl.tensor, mixed: tl.tensor, scores: tl.tensor, value: tl.tensor,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Return the greatest score, the weights' sum and the weighted values of the lines, some keys later.

    Args:
        best: (lines,), of scores in powers of two.
        total: (lines,).
        mixed: (lines, padded).
        scores: (lines, keys); -inf of what a line does not see.
        value: (keys, padded).
    """
    latest = tl.maximum(best, tl.max(scores, 1))
    level = tl.where(latest == float("-inf"), 0.0, latest)  # of a line that has seen nothing yet
    weight, faded = tl.exp2(scores - level[:, None]), tl.exp2(best - level)
    total = total * faded + tl.sum(weight, 1)
    mixed = mixed * faded[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return latest, total, mixed


@on_device(
    "count", "words", "capacity", "window", "splits", "places",
    unaligned=("starts", "bits", "columns_at", "positions"),  # neighbours in an input
)  # fmt: skip
def _attend(
    qkv: tl.tensor, states: tl.tensor, starts: tl.tensor, bits: tl.tensor, columns_at: tl.tensor, positions: tl.tensor,
    turns: tl.tensor, norm: tl.tensor, parts: tl.tensor, weights: tl.tensor, eps: tl.tensor, factor: tl.tensor,
    states_batch: tl.tensor, stride: tl.tensor, positions_batch: tl.tensor, positions_node: tl.tensor,
    count: tl.tensor, words: tl.tensor, capacity: tl.tensor, window: tl.tensor, splits: tl.tensor, places: tl.tensor,
    heads: tl.constexpr, kv_heads: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, lines: tl.constexpr,
    columns: tl.constexpr, nodes: tl.constexpr, alone: tl.constexpr, is_windowed: tl.constexpr,
    is_normed: tl.constexpr, hides_first: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Write one split's part of the mix of some lines; a line is a node and one of the query heads it has here.

    Alone, the split writes the mix itself, (batch, count, heads, size). Else it writes (batch, count, heads, splits,
    size) of weighted values, and the greatest score and the weights' sum beside each, which are -inf and 0 where it has
    seen nothing. The last split reads the new nodes, and stores them for all.
    """
    let_next_begin(is_chained)
    groups: tl.constexpr = heads // kv_heads
    lane: tl.constexpr = (heads + 2 * kv_heads) * size
    half: tl.constexpr = size // 2
    tiles = tl.cdiv(count * groups, lines)
    head, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    split, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    start = tl.load(starts + row)
    place, part, near = tl.arange(0, columns), tl.arange(0, padded), tl.arange(0, nodes)
    newest = start * 0 + capacity  # the first column that this launch writes
    for node in range(0, count, nodes):
        taken = tl.load(columns_at + row * count + node + near, mask=node + near < count, other=capacity)
        newest = tl.minimum(newest, tl.min(taken, 0))
    cached, begin = newest.to(tl.int32), split * 0
    if is_windowed:
        begin = tl.maximum(start + 1 - window, 0).to(tl.int32) // columns * columns
    share = tl.cdiv(tl.cdiv(tl.maximum(cached - begin, 0), columns), splits) * columns
    first = begin + split * share
    last = tl.minimum(first + share, cached)
    keys = states + row * states_batch + head * size
    values = keys + kv_heads * size
    is_part = part < size
    key_at = keys + first * stride.to(tl.int64) + place[None, :] * stride + part[:, None]
    value_at = values + first * stride.to(tl.int64) + place[:, None] * stride + part[None, :]
    key_ahead = tl.load(key_at, mask=(first + place < last)[None, :] & is_part[:, None], other=0.0)
    value_ahead = tl.load(value_at, mask=(first + place < last)[:, None] & is_part[None, :], other=0.0)
    line = tile * lines + tl.arange(0, lines)
    is_line, node, asker = line < count * groups, line // groups, head * groups + line % groups
    is_asked = is_line[:, None] & is_part[None, :]
    partner = tl.where(part < half, part + half, part - half)
    positions += row * positions_batch
    where = tl.minimum(tl.load(positions + node * positions_node, mask=is_line, other=0), places - 1) * (2 * size)
    cosine = tl.load(turns + where[:, None] + part[None, :], mask=is_asked, other=0.0).to(tl.float32)
    sine = tl.load(turns + where[:, None] + size + part[None, :], mask=is_asked, other=0.0).to(tl.float32)
    words_at = bits + (row * count + node) * words
    lowest = line
    if is_windowed:  # a node's place in the text is what the text is long, and how many nodes its path has
        path = tl.zeros((lines,), tl.int64)
        for word in range(0, words):
            bit = tl.load(words_at + word, mask=is_line, other=0)[:, None] >> tl.arange(0, 64)[None, :].to(tl.int64)
            path += tl.sum(bit & 1, 1)
        lowest = (start + path - window).to(tl.int32)
    take_turn(is_chained)
    best = tl.full((lines,), float("-inf"), tl.float32)
    total = tl.zeros((lines,), tl.float32)
    mixed = tl.zeros((lines, padded), tl.float32)
    if (first < last) | (split == splits - 1):
        asked_at = qkv + (row * count + node).to(tl.int64)[:, None] * lane + (asker * size)[:, None]
        norm_at = norm + (asker * size)[:, None]
        asked = _turned(
            asked_at + part[None, :], asked_at + partner[None, :], norm_at + part[None, :], norm_at + partner[None, :],
            is_asked, cosine, sine, eps, size, 1, is_normed,
        )  # fmt: skip
        for column in range(first, last, columns):
            key, value = key_ahead, value_ahead
            key_at += columns * stride.to(tl.int64)
            value_at += columns * stride.to(tl.int64)
            is_next = column + columns + place < last
            key_ahead = tl.load(key_at, mask=is_next[None, :] & is_part[:, None], other=0.0)
            value_ahead = tl.load(value_at, mask=is_next[:, None] & is_part[None, :], other=0.0)
            scores = tl.dot(asked, key, input_precision="ieee") * factor
            if column + columns > tl.minimum(start, last):  # there are nodes among these, or nothing any more
                node_here, is_here = (column + place - start).to(tl.int32), column + place < last
                is_node = is_here & (node_here >= 0) & (node_here < 64 * words)
                is_seen = _seen(words_at, node_here, is_line, is_node) | (node_here < 0)[None, :]
                scores = tl.where(is_seen & is_here[None, :], scores, float("-inf"))
            if is_windowed:
                scores = tl.where((column + place)[None, :] >= lowest[:, None], scores, float("-inf"))
            if hides_first:
                scores = tl.where((column + place)[None, :] > 0, scores, float("-inf"))
            best, total, mixed = _taken_in(best, total, mixed, scores, value)
        if split == splits - 1:
            for behind in range(0, count, nodes):
                is_new = behind + near < count
                own = (row * count + behind + near).to(tl.int64)
                stored = tl.load(columns_at + own, mask=is_new, other=0)
                new_position = tl.load(positions + (behind + near) * positions_node, mask=is_new, other=0)
                new_where = tl.minimum(new_position, places - 1) * (2 * size)
                is_key, is_value = is_part[:, None] & is_new[None, :], is_new[:, None] & is_part[None, :]
                turn_at = turns + new_where[None, :] + part[:, None]
                new_at, new_norm = qkv + own[None, :] * lane + (heads + head) * size, norm + (heads + head) * size
                key = _turned(
                    new_at + part[:, None], new_at + partner[:, None], new_norm + part[:, None] + near[None, :] * 0,
                    new_norm + partner[:, None] + near[None, :] * 0, is_key,
                    tl.load(turn_at, mask=is_key, other=0.0).to(tl.float32),
                    tl.load(turn_at + size, mask=is_key, other=0.0).to(tl.float32), eps, size, 0, is_normed,
                )  # fmt: skip
                value_from = qkv + own[:, None] * lane + (heads + kv_heads + head) * size + part[None, :]
                value = tl.load(value_from, mask=is_value, other=0.0)
                if tile == 0:
                    tl.store(keys + stored[None, :] * stride + part[:, None], key, mask=is_key)
                    tl.store(values + stored[:, None] * stride + part[None, :], value, mask=is_value)
                scores = tl.dot(asked, key, input_precision="ieee") * factor
                node_here = (stored - start).to(tl.int32)
                is_seen = _seen(words_at, node_here, is_line, is_new & (node_here < 64 * words))
                if hides_first:
                    is_seen = is_seen & ((stored > 0)[None, :] | (node[:, None] == (behind + near)[None, :]))
                best, total, mixed = _taken_in(best, total, mixed, tl.where(is_seen, scores, float("-inf")), value)
    out_place = (row * count + node) * heads + asker
    if alone:
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(parts + out_place[:, None] * size + part[None, :], mixed.to(parts.dtype.element_ty), mask=is_asked)
    else:
        out_place = out_place * splits + split
        tl.store(parts + out_place[:, None] * size + part[None, :], mixed, mask=is_asked & (total > 0)[:, None])
        tl.store(weights + out_place * 2, best, mask=is_line)
        tl.store(weights + out_place * 2 + 1, total, mask=is_line)


@on_device("splits")
def _combine(
    parts: tl.tensor, weights: tl.tensor, out: tl.tensor, splits: tl.tensor,
    size: tl.constexpr, padded: tl.constexpr, parts_padded: tl.constexpr, is_chained: tl.constexpr,
) -> None:  # fmt: skip
    """Write (size,) of one head of one node: its splits' parts put together.

    Args:
        parts: (lines, splits, size), weighted values; anything where the sum of weights is 0.
        weights: (lines, splits, 2), greatest scores and sums of weights.
        out: (lines, size).
        splits: of the keys.
        size: of a head.
        padded: a power of two.
        parts_padded: likewise, of `splits`.
        is_chained: whether it takes its turn.
    """
    let_next_begin(is_chained)
    take_turn(is_chained)
    line = tl.program_id(0).to(tl.int64)
    split, part = tl.arange(0, parts_padded), tl.arange(0, padded)
    best = tl.load(weights + (line * splits + split) * 2, mask=split < splits, other=float("-inf"))
    total = tl.load(weights + (line * splits + split) * 2 + 1, mask=split < splits, other=0.0)
    is_mixed = (total > 0)[:, None] & (part < size)[None, :]
    mixed = tl.load(parts + (line * splits + split)[:, None] * size + part[None, :], mask=is_mixed, other=0.0)
    top = tl.max(best, 0)
    weight = tl.exp2(best - tl.where(top == float("-inf"), 0.0, top))
    sums = tl.sum(weight * total, 0)
    result = tl.sum(weight[:, None] * mixed, 0) / tl.where(sums > 0, sums, 1.0)
    tl.store(out + line * size + part, result.to(out.dtype.element_ty), mask=part < size)
