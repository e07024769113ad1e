"""Weights of layers as one compiled call takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

import numpy as np
from numpy.typing import NDArray

from ...planner.kernels.arrays import Ints

if TYPE_CHECKING:
    from .anatomy import LayerWeights
    from .bfloat16 import KernelProduct
    from .norm import Norm


Bits = NDArray[Any]  # uint16 of bfloat16, or uint32 of a norm's weights in float32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelParts:
    """Weights of layers of one form for kernels; large ones as addresses, so the layers must be held."""

    inner: int  # gates of an MLP
    weights: Ints  # (layers, 4), addresses: query, key and value; output; gate and up; down
    opening: tuple[Bits, float, Bits, Bits, float]  # input norm, bias of the first weight, norm of heads
    closing: tuple[Bits, Bits, float, Bits, Bits]  # output's bias, norm before the MLP, biases of the MLP

    @property
    def every(self) -> tuple[Any, ...]:
        """The arguments of `kernels/bfloat16_rows.py:run_layers` from `inner` on."""
        return self.inner, self.weights, *self.opening, *self.closing

    @property
    def behind_attention(self) -> tuple[Any, ...]:
        """The arguments of `close_layer` from `inner` on, for the first layer."""
        output_bias, scale, eps, gate_up_bias, down_bias = self.closing
        _, *weights = self.weights[0].tolist()
        return self.inner, *weights, output_bias[0], scale[0], eps, gate_up_bias[0], down_bias[0]

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
    heads = _normed(layer.head_norm) if layer.head_norm is not None else (np.empty((1, 0, 1), np.uint16), 0.0)
    return KernelParts(
        inner=inner,
        weights=np.array([[each.address for each in (qkv, output, gate_up, down)]]),
        opening=(*_normed(layer.input_norm), _bias(qkv), *heads),
        closing=(_bias(output), *_normed(layer.mlp_norm), _bias(gate_up), _bias(down)),
    )


def stacked(layers: Sequence[LayerWeights]) -> KernelParts | None:
    """Return all layers' weights for one call; None where kernels do not take all, or the layers differ in form."""
    parts = [layer.by_kernels for layer in layers]
    found = [each for each in parts if each is not None]
    ways = {(layer.sight, layer.scale, layer.qkv.shape, layer.output.shape) for layer in layers}
    if len(found) < len(parts) or len(ways) != 1 or len({_likeness(each) for each in found}) != 1:
        return None
    return KernelParts(
        inner=found[0].inner,
        weights=np.concatenate([each.weights for each in found]),
        opening=_joined([each.opening for each in found]),
        closing=_joined([each.closing for each in found]),
    )


def _likeness(parts: KernelParts) -> tuple[object, ...]:
    """Return what must be equal for layers in one call."""
    given = (*parts.opening, *parts.closing)
    return parts.inner, *((each.shape, each.dtype) if isinstance(each, np.ndarray) else each for each in given)


def _joined(parts: Sequence[tuple[Any, ...]]) -> Any:  # Any: of the type of one
    """Return arrays of all layers one after the other; other values are equal for all."""
    each_kind = zip(*parts, strict=True)
    return tuple(np.concatenate(each) if isinstance(each[0], np.ndarray) else each[0] for each in each_kind)


def _normed(norm: Norm) -> tuple[Bits, float]:
    assert norm.scale is not None, "a norm's weight lies where the products' do"
    return norm.scale[None], norm.eps


def _bias(product: KernelProduct) -> Bits:
    return product.bias[None]
