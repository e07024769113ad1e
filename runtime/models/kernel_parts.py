"""A layer's weights as one compiled call takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .anatomy import LayerWeights
    from .bfloat16 import BFloat16Product
    from .norm import Norm


Bits = NDArray[Any]  # uint16 of bfloat16, or uint32 of a norm's weights in float32


@dataclass(frozen=True, slots=True)
class KernelParts:
    """Arguments of `kernels/bfloat16_rows.py:whole_layer`."""

    opening: tuple[Bits, float, Bits, Bits, Bits, float]  # norm, query, key and value, and the norm of heads
    closing: tuple[Bits, Bits, Bits, float, Bits, Bits, Bits, Bits]  # output, norm and MLP; those of `close_layer`


def kernel_parts(layer: LayerWeights) -> KernelParts | None:
    """Return a layer's weights as kernels take them; None where they do not take all of them, or the layer as it is."""
    projections = (layer.qkv, layer.output, layer.gate_up, layer.down)
    qkv, output, gate_up, down = (projection.by_kernels for projection in projections)
    has_results_normed = layer.output_norm is not None or layer.down_norm is not None
    if qkv is None or output is None or gate_up is None or down is None or has_results_normed or not layer.is_silu:
        return None
    hidden, inner = down.shape
    if (output.shape[0], gate_up.shape) != (hidden, (2 * inner, hidden)):
        return None  # each product by itself says what does not fit
    heads = _normed(layer.head_norm) if layer.head_norm is not None else (np.empty((0, 1), np.uint16), 0.0)
    return KernelParts(
        opening=(*_normed(layer.input_norm), *_held(qkv), *heads),
        closing=(*_held(output), *_normed(layer.mlp_norm), *_held(gate_up), *_held(down)),
    )


def _normed(norm: Norm) -> tuple[Bits, float]:
    assert norm.scale is not None, "a norm's weight lies where the products' do"
    return norm.scale, norm.eps


def _held(product: BFloat16Product) -> tuple[Bits, Bits]:
    return product.panels, product.bias
