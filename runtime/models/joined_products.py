"""A layer's products on a CPU with bfloat16 instructions, joined with the work around them.

Between products of few rows there is little arithmetic, but a torch call a step. So a layer is one compiled call or
two.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .anatomy import Anatomy, LayerWeights
from .attention import attention_input, is_by_dots, is_compiled_attention
from .bits import bits, is_kernels
from .kernel_parts import KernelParts
from .kernels.bfloat16_rows import KeptFeatures, close_layer, normed_product, run_layers
from .norm import Norm
from .places import Place
from .products import Products
from .projection import Projection

NO_FEATURES = KeptFeatures(np.empty(0, dtype=np.int64), np.empty((0, 0, 0), dtype=np.uint16))


class JoinedProducts(Products):
    """Products by few calls where our kernels hold the weights, step by step elsewhere."""

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared

    def normed(self, hidden: Tensor, norm: Norm, projection: Projection) -> Tensor:
        """Return projection(norm(hidden)), (rows, out)."""
        own, scale = projection.by_kernels, norm.scale_for(hidden)
        if own is None or scale is None or hidden.shape[1] != projection.shape[1]:
            return super().normed(hidden, norm, projection)
        out = hidden.new_empty(len(hidden), projection.shape[0])
        given = bits(hidden), scale, norm.eps, own.address, own.bias, own.no_residual, bits(out), self._is_shared
        normed_product(*given)
        return out

    def left(self, residual: Tensor, mixed: Tensor, layer: LayerWeights) -> Tensor:
        """Return a layer's result, (rows, hidden)."""
        own = layer.by_kernels if is_kernels(mixed) else None
        if own is None or mixed.shape[1] != layer.output.shape[1]:
            return super().left(residual, mixed, layer)
        out = residual.new_empty(residual.shape)
        given = bits(mixed.contiguous()), bits(residual.contiguous()), bits(out)
        close_layer(*given, own.layers, 0, self._is_shared)
        return out


def layers_by_kernels(
    anatomy: Anatomy,
    parts: KernelParts,  # of the layers
    first: LayerWeights,  # any of them
    hidden: Tensor,  # before the first that is run
    states: Tensor,  # (layers, slots, capacity, width), written
    place: Place,
    passed: int = 0,  # leading layers that are not run
    kept: KeptFeatures = NO_FEATURES,  # hidden states that are written beside the tokens' keys, and where
) -> Tensor | None:
    """Return hidden states (rows, hidden) after some layers by one compiled call; None where it does not fit them."""
    view = place.views[first.sight]
    if view.tree is not None or not fits(anatomy, first) or not is_by_dots(anatomy, hidden):
        return None
    is_whole = hidden.shape[1] == first.output.shape[0] and len(states) == len(parts.layers.weights)
    if not is_whole or not states.is_contiguous():
        return None  # whoever runs layer by layer says what does not fit
    if not is_compiled_attention(anatomy, hidden, place, view):
        return None
    out = hidden.new_empty(hidden.shape)
    run_layers(
        bits(hidden.contiguous()), attention_input(anatomy, first, bits(states), place, view), parts.layers, kept,
        bits(out), place.slots.start, passed, place.is_shared,
    )  # fmt: skip
    return out


def fits(anatomy: Anatomy, layer: LayerWeights) -> bool:
    """Return whether a layer's input is as wide as its result, and its heads are its model's."""
    queries, pairs = anatomy.heads * anatomy.size, 2 * anatomy.kv_heads * anatomy.size
    return (*layer.qkv.shape, layer.output.shape[1]) == (queries + pairs, layer.output.shape[0], queries)


ALONE, SHARED = JoinedProducts(is_shared=False), JoinedProducts(is_shared=True)
