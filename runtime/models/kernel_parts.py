"""Weights of layers as one compiled call takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

import numpy as np
from numpy.typing import NDArray

from .kernels.bfloat16_rows import LayerArrays

if TYPE_CHECKING:
    from .anatomy import LayerWeights
    from .bfloat16 import KernelProduct
    from .norm import Norm


Bits = NDArray[Any]  # uint16 of bfloat16, or uint32 of a norm's weights in float32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelParts:
    """Weights of layers of one form for kernels; large ones as addresses, so the layers must be held."""

    layers: LayerArrays

    def __reduce__(self) -> Never:
        """Refuse to be copied: the addresses would be those of another object's weights."""
        raise TypeError("a model whose weights our kernels hold cannot be copied; read it again")


def kernel_parts(layer: LayerWeights) -> KernelParts | None:
    """Return a layer's weights for kernels; None where they do not take all of them, or the layer's form."""
    projections = (layer.qkv, layer.output, layer.gate_up, layer.down)
    qkv, output, gate_up, down = (projection.by_kernels for projection in projections)
    has_results_normed = layer.output_norm is not None or layer.down_norm is not None
    if qkv is None or output is None or gate_up is None or down is None or has_results_normed or not layer.is_silu:
        return None
    hidden, inner = down.shape
    if (output.shape[0], gate_up.shape) != (hidden, (2 * inner, hidden)):
        return None  # each product by itself says what does not fit
    input_scale, input_eps = _normed(layer.input_norm)
    scale, eps = _normed(layer.mlp_norm)
    heads = layer.head_norm
    head_scale, head_eps = (np.empty((1, 0, 1), np.uint16), 0.0) if heads is None else _normed(heads)
    return KernelParts(
        layers=LayerArrays(
            inner=inner,
            weights=np.array([[each.address for each in (qkv, output, gate_up, down)]]),
            input_scale=input_scale,
            input_eps=input_eps,
            qkv_bias=_bias(qkv),
            head_scale=head_scale,
            head_eps=head_eps,
            output_bias=_bias(output),
            scale=scale,
            eps=eps,
            gate_up_bias=_bias(gate_up),
            down_bias=_bias(down),
        )
    )


def stacked(layers: Sequence[LayerWeights]) -> KernelParts | None:
    """Return all layers' weights for one call; None where kernels do not take all, or the layers differ in form."""
    parts = [layer.by_kernels for layer in layers]
    found = [each.layers for each in parts if each is not None]
    ways = {(layer.sight, layer.scale, layer.qkv.shape, layer.output.shape) for layer in layers}
    if len(found) < len(parts) or len(ways) != 1 or len({_likeness(each) for each in found}) != 1:
        return None
    arrays = (np.concatenate(one) if isinstance(one[0], np.ndarray) else one[0] for one in zip(*found, strict=True))
    return KernelParts(layers=LayerArrays._make(arrays))  # values that are no arrays are equal for all


def _likeness(layers: LayerArrays) -> tuple[object, ...]:
    """Return what must be equal for layers in one call."""
    return tuple((each.shape, each.dtype) if isinstance(each, np.ndarray) else each for each in layers)


def _normed(norm: Norm) -> tuple[Bits, float]:
    assert norm.scale is not None, "a norm's weight lies where the products' do"
    return norm.scale[None], norm.eps


def _bias(product: KernelProduct) -> Bits:
    return product.bias[None]
