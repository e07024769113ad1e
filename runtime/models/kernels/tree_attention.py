"""Attention of a tree's nodes to a key-value cache, split over keys: it decides a GPU's decoding step.

Few queries read a long cache, so one program per head would leave most of the device idle. Several programs share the
keys of every head, and a second launch joins their parts of the softmax. The grid depends on shapes alone; each program
finds its keys on the device. So a launch fits a CUDA graph and costs by the text's length, not the cache's capacity.
Each program loads its first cached keys and values before the projection is done (see chain.py).

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
    qkv: Tensor,  # (batch * n, (heads + 2 * kv_heads) * size) of `KINDS`: queries, keys, values
    states: Tensor,  # (batch, capacity, 2 * kv_heads * size) of the same kind, keys then values
    starts: Tensor,  # (batch,) int64, committed tokens
    bits: Tensor,  # (batch, n, words) int64: bit c % 64 of word c // 64, the sign being bit 63
    columns: Tensor,  # (batch, n) int64, where the nodes are stored; unseen ones may share one
    positions: Tensor,  # (batch, n) int64; beyond the table of turns they are its last
    turns: Tensor,  # (places, 2 * size): cosines, then sines with the signs that the roll needs
    weight: Tensor | None = None,  # (heads + kv_heads, size) of any float format: a norm's, head by head
    *,
    heads: int,
    kv_heads: int,  # query head h reads h // (heads // kv_heads)
    scale: float,
    eps: float = 0.0,  # of the norm
    window: int | None = None,  # columns that a node sees at most, all bits of a node or more; None: all
    hides_first: bool = False,  # column 0 is seen by the node stored there alone
    splits: int | None = None,  # programs that share the keys of a head; None: as many as fill the device
) -> Tensor:
    """Store the nodes' keys and values and mix values for them; never reads the device on the host.

    Node j of row b sees the columns below starts[b], and starts[b] + c where bit c of bits[b, j] is set, with a window
    the last of these alone. A node must see something. Cached columns lie left of all new ones in a row. Queries and
    keys turn to x * cosine + roll(x, size / 2) * sine, with a weight after x / rms(x) * weight. All is contiguous but
    rows of `states`, and `positions`. Return (batch * n, heads * size) of the kind of qkv; sums are in float32.

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
    """Return heads, normed if `is_normed` and turned, in the format that they are read in.

    `at` are addresses of their numbers, a head along `axis`, `partner_at` of those half a head away; weights likewise.
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
    """Return (lines, any): whether each line's bits, at addresses (lines,), include each node (any,) int32."""
    word = tl.load(bits[:, None] + (node >> 6)[None, :], mask=is_line[:, None] & is_node[None, :], other=0)
    return ((word >> (node & 63)[None, :].to(tl.int64)) & 1) != 0


@on_device()
def _taken_in(
    best: tl.tensor, total: tl.tensor, mixed: tl.tensor, scores: tl.tensor, value: tl.tensor,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Return greatest score, sum of weights (lines,) and weighted values (lines, padded), updated by some keys.

    `best` is of scores in powers of two, `scores` (lines, keys), -inf for hidden keys, and `value` (keys, padded).
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
    """Write one split's part of the mix of some lines; a line is a node and one of its query heads here.

    Alone, it writes the mix itself, (batch, count, heads, size); otherwise (batch, count, heads, splits, size) with the
    greatest score and the sum of weights of each, -inf and 0 where it saw nothing. The last split stores the new nodes.
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
    """Write (size,) of one head of one node: its splits' parts joined, where their sum of weights is not 0."""
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
