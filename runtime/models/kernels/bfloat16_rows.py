"""x W^T in bfloat16 on a CPU, and the work around it in a layer, in one compiled call each.

Sums are in float32 and rounded once, after bias and residual. Numbers come as their bits. A decoding step reads its
weights once for up to `MOST_ROWS` rows; a library's product takes twice as long, mostly around its arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

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
    AttentionInput,
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


class NormedProduct(NamedTuple):
    """A norm and the product behind it, as `normed_product` takes them."""

    scale: Bits
    eps: float
    weight: int
    bias: Halves
    no_residual: Halves


class LayerArrays(NamedTuple):
    """Llama layers that differ in weights alone; norms and biases are (layers, ...)."""

    inner: int  # gates of an MLP
    weights: Ints  # (layers, 4), for `product`: query, key and value; output; gate and up; down
    input_scale: Bits
    input_eps: float
    qkv_bias: Halves
    head_scale: Bits  # (layers, 0, any) for none
    head_eps: float
    output_bias: Halves
    scale: Bits  # of the norm in front of the MLP, (layers, 1, hidden)
    eps: float
    gate_up_bias: Halves
    down_bias: Halves


class KeptFeatures(NamedTuple):
    """Hidden states that are written beside their tokens' keys."""

    after: Ints  # (parts,), layers that each part of a feature has passed; empty for no features
    features: Halves  # (slots, capacity, parts * hidden)


@compiled
def panel_product(x: Halves, weight: int, bias: Halves, residual: Halves, out: Halves, number: int) -> None:
    """Write one panel's columns of out, all rows: the panel stays in a near cache meanwhile."""
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
    """Write x W^T + bias + residual into out (rows, out), for x (rows, in); `is_shared` by several threads.

    `weight` is the address of panels (out / WIDTH, in / 2, WIDTH, 2), or of `packed_product`'s parts plus `IS_PACKED`.
    `bias` is (out,) or (0,), and `residual` (rows, out) or (0, out).
    """
    if weight & IS_PACKED:
        packed_product(x, weight - IS_PACKED, bias, residual, out, is_shared)
    elif is_shared:
        product_shared(x, weight, bias, residual, out)
    else:
        product_alone(x, weight, bias, residual, out)


@compiled
def norm(x: Halves, scale: Bits, eps: float, out: Halves, is_shared: bool) -> None:
    """Do what `norm_rows` does, by several threads if wanted and worthwhile."""
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
    mixed: Halves, residual: Halves, out: Halves, layers: LayerArrays, number: int, is_shared: bool
) -> None:
    """Write the result of a Llama layer from the mixed values of its attention, (rows, in); the rest is (rows, hidden).

    middle = residual + output(mixed); out = middle + down(silu(gate) * up), gate and up being those of middle normed.
    """
    _, output, gate_up, down = layers.weights[number]
    middle, opened = np.empty_like(residual), np.empty((len(mixed), 2 * layers.inner), np.uint16)
    product(mixed, output, layers.output_bias[number], residual, middle, is_shared)
    bias = layers.gate_up_bias[number]
    normed_product(middle, layers.scale[number], layers.eps, gate_up, bias, middle[:0], opened, is_shared)
    gated_product(opened, down, layers.down_bias[number], middle, out, is_shared)


@compiled
def run_layers(
    hidden: Halves, given: AttentionInput, layers: LayerArrays, kept: KeptFeatures, out: Halves,
    slot: int, passed: int, is_shared: bool,
) -> None:  # fmt: skip
    """Write the result of the layers behind `passed` ones; writes the new tokens' keys and values.

    `hidden` (rows, hidden) enters the first layer that is run. `given` is as for `attend`, but its states are (layers,
    slots, capacity, width), where the rows' slots begin at `slot`.
    """
    count, batch, current = len(layers.weights), len(given.bias), hidden
    features, columns = kept.features[slot : slot + batch], given.columns
    opened = np.empty((len(hidden), given.heads * (given.turns.shape[1] // 2) + given.states.shape[3]), np.uint16)
    mixed = np.empty((len(hidden), given.heads * (given.turns.shape[1] // 2)), np.uint16)
    if passed == 0:
        keep_features(hidden, columns, ZERO, kept.after, features)
    for layer in range(passed, count):
        weight, left = layers.weights[layer, 0], out if layer == count - 1 else np.empty_like(out)
        scale, bias = layers.input_scale[layer], layers.qkv_bias[layer]
        normed_product(current, scale, layers.input_eps, weight, bias, opened[:0], opened, is_shared)
        if layers.head_scale.shape[1]:
            norm(opened, layers.head_scale[layer], layers.head_eps, opened, is_shared)
        own = AttentionInput(
            given.turns, given.states[layer, slot : slot + batch], given.bias, columns,
            given.first, given.seen, given.heads, given.scale,
        )  # fmt: skip
        attend(opened, own, mixed, is_shared)
        close_layer(mixed, current, left, layers, layer, is_shared)
        keep_features(left, columns, layer + 1, kept.after, features)
        current = left


@compiled
def keep_features(hidden: Halves, columns: Ints, passed: int, after: Ints, features: Halves) -> None:
    """Write hidden states (batch * n, hidden) after `passed` layers beside their tokens' keys, if they are wanted.

    `after` (parts,) counts the layers before each part of a feature; empty for no features. `features` is (batch,
    capacity, parts * hidden) of the rows' slots.
    """
    rows, size = hidden.shape
    for part in range(len(after)):
        if after[part] == passed:
            each = rows // len(features)
            for row in range(rows):
                features[row // each, columns[row], part * size : (part + 1) * size] = hidden[row]
