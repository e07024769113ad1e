"""x W^T in bfloat16 on a CPU, and what stands before and behind it in a layer, in one compiled call each.

Sums are in float32 and rounded once, behind bias and residual. Numbers come as their bits. The weights of a decoding
step are read once for up to `MOST_ROWS` rows; a library's product takes twice as long there, most of it around its
arithmetic.
"""

from __future__ import annotations

import numpy as np

from ....planner.kernels.arrays import Ints
from ....planner.kernels.compiled import ZERO, compiled
from .bfloat16_attention import UNUSED, attend
from .bfloat16_dots import MOST_ROWS, WIDTH, write_product
from .bfloat16_tiles import HAS_TILES, MOST_TILES, TILE_ROWS, TILE_STEP, write_tiled_product
from .emitted import HALF_BYTES
from .few_rows import SUMS_MAY_BE_REORDERED, Halves, signed
from .host_rows import (
    LEAST_EXPONENT,
    Bits,
    bits_of,
    norm_rows,
    number_of,
    power_of_e,
    shared_norm_rows,
)
from .packed_rows import packed_product
from .threads import MOST_ALONE

NOTHING = np.zeros(WIDTH, np.uint16)  # a constant of the code: numba frees what is known by its address alone
IS_PACKED = 1  # added to an address, which is even
prange = range  # compiled, it is numba's, which splits a loop among threads


@compiled
def panel_product(x: Halves, weight: int, bias: Halves, residual: Halves, out: Halves, number: int) -> None:
    """Write the columns of out that belong to one panel, all rows: it stays in a near cache while they take turns."""
    rows, length = x.shape
    first = number * WIDTH * HALF_BYTES
    panel = weight + first * length
    own = bias.ctypes.data + first if len(bias) else NOTHING.ctypes.data
    added, added_stride = NOTHING.ctypes.data, 0
    if len(residual):
        added, added_stride = residual.ctypes.data + first, residual.strides[0]
    x_stride, stride = x.strides[0], out.strides[0]
    if HAS_TILES and length % TILE_STEP == 0:
        for row in range(0, rows, MOST_TILES * TILE_ROWS):
            count = min(rows - row, MOST_TILES * TILE_ROWS)
            write_tiled_product(
                (count + TILE_ROWS - 1) // TILE_ROWS, count,
                x.ctypes.data + row * x_stride, x_stride, panel, length, own,
                added + row * added_stride, added_stride, out.ctypes.data + first + row * stride, stride,
            )  # fmt: skip
        return
    groups, row = (rows + MOST_ROWS - 1) // MOST_ROWS, 0
    for group in range(groups):
        count = rows * (group + 1) // groups - row  # about equal ones
        write_product(
            count, x.ctypes.data + row * x_stride, x_stride, panel, length, own,
            added + row * added_stride, added_stride, out.ctypes.data + first + row * stride, stride,
        )  # fmt: skip
        row += count


@compiled
def product_alone(x: Halves, weight: int, bias: Halves, residual: Halves, out: Halves) -> None:
    """Do what `product` does by one thread."""
    for number in range(out.shape[1] // WIDTH):
        panel_product(x, weight, bias, residual, out, number)


@compiled(parallel=True)
def product_shared(x: Halves, weight: int, bias: Halves, residual: Halves, out: Halves) -> None:
    """Do what `product` does by several threads."""
    for number in prange(out.shape[1] // WIDTH):
        panel_product(x, weight, bias, residual, out, signed(number))


@compiled
def product(x: Halves, weight: int, bias: Halves, residual: Halves, out: Halves, is_shared: bool) -> None:
    """Write x W^T + bias + residual.

    Args:
        x: (rows, in).
        weight: address of (out / WIDTH, in / 2, WIDTH, 2) numbers, panels as `write_product` reads them; of a weight in
            few bits address of its parts, as `packed_product` takes it, and `IS_PACKED`.
        bias: (out,), or (0,) for none.
        residual: (rows, out), or (0, out) for none.
        out: (rows, out), written.
        is_shared: whether several threads share the panels.
    """
    if weight & IS_PACKED:
        packed_product(x, weight - IS_PACKED, bias, residual, out, is_shared)
    elif is_shared:
        product_shared(x, weight, bias, residual, out)
    else:
        product_alone(x, weight, bias, residual, out)


@compiled
def norm(x: Halves, scale: Bits, eps: float, out: Halves, is_shared: bool) -> None:
    """Do what `norm_rows` does, by several threads where that is worth it and wanted."""
    if is_shared and x.size > MOST_ALONE:
        shared_norm_rows(x, scale, eps, out)
    else:
        norm_rows(x, scale, eps, out)


@compiled
def normed_product(
    x: Halves, scale: Bits, eps: float, weight: int, bias: Halves, residual: Halves, out: Halves, is_shared: bool
) -> None:
    """Do what `product` does for x / rms(x) * scale; scale is (1, in)."""
    normed = np.empty_like(x)
    norm(x, scale, eps, normed, is_shared)
    product(normed, weight, bias, residual, out, is_shared)


@compiled(fastmath=SUMS_MAY_BE_REORDERED, error_model="numpy")
def gate_row(opened: Halves, out: Halves, row: int) -> None:
    """Do what `gate_rows` does for one row."""
    size = out.shape[1]
    for place in range(size):
        gate = number_of(opened[row, place], UNUSED)
        shrunk = power_of_e(-np.abs(gate))  # e to what is never above 0
        share = (np.float32(1) if gate >= np.float32(0) else shrunk) / (np.float32(1) + shrunk)
        share = np.float32(0) if gate < np.float32(LEAST_EXPONENT) else share
        out[row, place] = bits_of(gate * share * number_of(opened[row, np.uint64(size + place)], UNUSED), UNUSED)


@compiled(parallel=True)
def shared_gate_rows(opened: Halves, out: Halves) -> None:
    """Do what `gate_rows` does, by several threads."""
    for row in prange(len(out)):
        gate_row(opened, out, signed(row))


@compiled
def gate_rows(opened: Halves, out: Halves, is_shared: bool) -> None:
    """Write silu(gate) * up, (rows, size), of gates, then ups, (rows, 2 * size).

    Source: Shazeer 2020, arXiv:2002.05202, Eq. 6 (SwiGLU).
    """
    if is_shared and out.size > MOST_ALONE:
        shared_gate_rows(opened, out)
    else:
        for row in range(len(out)):
            gate_row(opened, out, row)


@compiled
def gated_product(opened: Halves, weight: int, bias: Halves, residual: Halves, out: Halves, is_shared: bool) -> None:
    """Do what `product` does for silu(gate) * up of gates, then ups, (rows, 2 * in)."""
    gated = np.empty((len(opened), opened.shape[1] // 2), np.uint16)
    gate_rows(opened, gated, is_shared)
    product(gated, weight, bias, residual, out, is_shared)


@compiled
def close_layer(
    mixed: Halves, residual: Halves, out: Halves, is_shared: bool, inner: int,
    output: int, gate_up: int, down: int,
    output_bias: Halves, scale: Bits, eps: float, gate_up_bias: Halves, down_bias: Halves,
) -> None:  # fmt: skip
    """Write what a layer of the Llama kind leaves, of what its attention mixed.

    middle = residual + output(mixed); out = middle + down(silu(gate) * up), gate and up being those of middle normed

    Args:
        mixed: (rows, in).
        residual: (rows, hidden), what went into the layer.
        out: (rows, hidden), written.
        is_shared: whether several threads share the panels.
        inner: how many gates there are.
        output, gate_up, down: weights, and each one's bias, as `product` takes them.
        scale: (1, hidden), of the norm before the MLP.
        eps: added to its mean square.
    """
    middle, opened = np.empty_like(residual), np.empty((len(mixed), 2 * inner), np.uint16)
    product(mixed, output, output_bias, residual, middle, is_shared)
    normed_product(middle, scale, eps, gate_up, gate_up_bias, middle[:0], opened, is_shared)
    gated_product(opened, down, down_bias, middle, out, is_shared)


@compiled
def run_layers(
    hidden: Halves, turns: Halves, states: Halves, mask: Halves, columns: Ints, out: Halves,
    after: Ints, features: Halves, slot: int, first: int, seen: int, passed: int, is_shared: bool,
    heads: int, attention_scale: float, inner: int, weights: Ints,
    input_scale: Bits, input_eps: float, qkv_bias: Halves, head_scale: Bits, head_eps: float,
    output_bias: Halves, scale: Bits, eps: float, gate_up_bias: Halves, down_bias: Halves,
) -> None:  # fmt: skip
    """Write what layers of the Llama kind leave, of what goes into the first; writes the new tokens' keys and values.

    All layers are alike but for their weights.

    Args:
        hidden: (rows, hidden).
        turns, mask, columns, first, seen, heads: as `attend` takes them, `mask` being its bias.
        states: (layers, slots, capacity, width), of which the rows' slots are `slot` and those behind it.
        out: as hidden, written.
        after, features: of hidden states that are kept, as `keep_features` takes them.
        passed: layers in front that are not run.
        is_shared: whether several threads share the work.
        attention_scale: of scores.
        inner: gates of an MLP.
        weights: (layers, 4): query, key and value; output; gate and up; down; as `product` takes them.
        input_scale: (layers, 1, hidden), of the norm before attention.
        input_eps: added to its mean square.
        qkv_bias: (layers, any), like the other biases.
        head_scale: (layers, lines, size), of the norm of queries and keys; (layers, 0, any) for none.
        head_eps: added to its mean square.
        output_bias, scale, eps, gate_up_bias, down_bias: as `close_layer` takes them, of every layer.
    """
    count, batch, current = len(weights), len(mask), hidden
    opened = np.empty((len(hidden), heads * (turns.shape[1] // 2) + states.shape[3]), np.uint16)
    mixed = np.empty((len(hidden), heads * (turns.shape[1] // 2)), np.uint16)
    if passed == 0:
        keep_features(hidden, columns, ZERO, after, features[slot : slot + batch])
    for layer in range(passed, count):
        own, left = weights[layer], out if layer == count - 1 else np.empty_like(out)
        normed_product(current, input_scale[layer], input_eps, own[0], qkv_bias[layer], opened[:0], opened, is_shared)
        if head_scale.shape[1]:
            norm(opened, head_scale[layer], head_eps, opened, is_shared)
        seen_here = states[layer, slot : slot + batch]
        attend(opened, turns, seen_here, mask, columns, mixed, first, seen, heads, attention_scale, is_shared)
        close_layer(
            mixed, current, left, is_shared, inner, own[1], own[2], own[3],
            output_bias[layer], scale[layer], eps, gate_up_bias[layer], down_bias[layer],
        )  # fmt: skip
        keep_features(left, columns, layer + 1, after, features[slot : slot + batch])
        current = left


@compiled
def keep_features(hidden: Halves, columns: Ints, passed: int, after: Ints, features: Halves) -> None:
    """Write hidden states beside their tokens' keys and values, where those of so many layers are wanted.

    Args:
        hidden: (batch * n, hidden), which have passed so many layers.
        columns: (batch * n,), the tokens' places in a cache.
        passed: layers.
        after: (parts,), how many layers each part of a feature has passed; none where nothing is kept.
        features: (batch, capacity, parts * hidden) of the rows' slots, written.
    """
    rows, size = hidden.shape
    for part in range(len(after)):
        if after[part] == passed:
            each = rows // len(features)
            for row in range(rows):
                features[row // each, columns[row], part * size : (part + 1) * size] = hidden[row]
