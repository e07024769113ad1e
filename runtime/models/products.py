"""A layer's products with the work around them: step by step, or in the way that is fastest on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from .anatomy import Anatomy, LayerWeights
from .choices import Choices, choices_of
from .kernels.fused_rows import gated, normed
from .kernels.row_products import Tile, multiplied, tiles_for
from .norm import Norm
from .projection import Projection

MOST_WEIGHTS = 16  # that a way is timed with, in turn


class Products:
    """Products one step after the other, by torch."""

    def normed(self, hidden: Tensor, norm: Norm, projection: Projection) -> Tensor:
        """Return projection(norm(hidden)), (rows, out), of hidden states (rows, hidden)."""
        return projection(norm(hidden))

    def added(self, residual: Tensor, x: Tensor, projection: Projection, norm: Norm | None) -> Tensor:
        """Return residual + norm(projection(x)), (rows, out), or without the norm."""
        return residual + norm(projection(x)) if norm is not None else projection.added_to(residual, x)

    def closed(self, residual: Tensor, opened: Tensor, layer: LayerWeights) -> Tensor:
        """Return residual + down(activation(gate) * up), normed where the layer does, of gates, then ups."""
        gate, up = opened.chunk(2, dim=-1)
        return self.added(residual, layer.activation(gate).mul_(up), layer.down, layer.down_norm)

    def left(self, residual: Tensor, mixed: Tensor, layer: LayerWeights) -> Tensor:
        """Return a layer's result, (rows, hidden): h = residual + output(mixed), plus the MLP's part of h."""
        hidden = self.added(residual, mixed, layer.output, layer.output_norm)
        return self.closed(hidden, self.normed(hidden, layer.mlp_norm, layer.gate_up), layer)


STEP_BY_STEP = Products()


class FusedProducts(Products):
    """Products of captured forwards on a GPU, each in its fastest way; they may overwrite the residual."""

    def __init__(self, anatomy: Anatomy, choices: Choices | None = None) -> None:
        """Hold the products of a model's layers; `choices` are its device's where None."""
        self._head = anatomy.head
        self._projections = tuple(
            projection
            for layer in anatomy.layers
            for projection in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )
        self.choices = choices or choices_of(anatomy.embedding.device)

    def normed(self, hidden: Tensor, norm: Norm, projection: Projection) -> Tensor:
        """Return projection(norm(hidden)), (rows, out)."""
        return self._done(_Product(projection=projection, x=hidden, norm=norm))

    def added(self, residual: Tensor, x: Tensor, projection: Projection, norm: Norm | None) -> Tensor:
        """Return residual + norm(projection(x)), (rows, out); without a norm perhaps over the residual."""
        if norm is not None:
            return super().added(residual, x, projection, norm)
        return self._done(_Product(projection=projection, x=x, residual=residual))

    def left(self, residual: Tensor, mixed: Tensor, layer: LayerWeights) -> Tensor:
        """Return a layer's result, (rows, hidden)."""
        if not layer.is_silu:
            return super().left(residual, mixed, layer)
        hidden = self.added(residual, mixed, layer.output, layer.output_norm)
        return self.added(hidden, self.opened(hidden, layer.mlp_norm, layer.gate_up), layer.down, layer.down_norm)

    def opened(self, hidden: Tensor, norm: Norm, projection: Projection) -> Tensor:
        """Return silu(gate) * up, (rows, out), of projection(norm(hidden)), (rows, 2 * out)."""
        return self._done(_Product(projection=projection, x=hidden, norm=norm, is_gated=True))

    def _done(self, product: _Product) -> Tensor:
        """Compute a product in the fastest way for its kind."""
        ways = (None, *product.tiles())
        if len(ways) == 1:
            return product.run(None)
        way = self.choices.way(product.kind, lambda: _Ways(product, ways, self._alike(product), self._read_head))
        return product.run(ways[way])

    def _alike(self, product: _Product) -> list[Projection]:
        shape, has_bias = product.projection.shape, product.projection.bias is not None
        found = [one for one in self._projections if one.shape == shape and (one.bias is not None) == has_bias]
        return found[:MOST_WEIGHTS] or [product.projection]

    def _read_head(self, like: Tensor) -> Tensor:
        """Return the head's answer to zeros: its weights are read between two forwards."""
        return self._head(like.new_zeros((1, self._head.shape[1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """g(W p(x) + bias) + residual, p being a norm or nothing, g a gate of silu or nothing."""

    projection: Projection
    x: Tensor
    residual: Tensor | None = None
    norm: Norm | None = None
    is_gated: bool = False

    @property
    def kind(self) -> tuple[object, ...]:
        """What is equal for products that take equally long."""
        norm, residual, bias = self.norm, self.residual, self.projection.bias
        scale = None if norm is None else norm.weight.dtype
        return self.projection.shape, len(self.x), self.x.dtype, scale, self.is_gated, bias is None, residual is None

    def tiles(self) -> tuple[Tile, ...]:
        """Return the ways to compute it in one launch; none where the kernel does not take it."""
        weight = self.projection.weight
        if weight is None or not weight.is_contiguous() or not self.x.is_contiguous() or weight.dtype != self.x.dtype:
            return ()
        return tiles_for(len(self.x), self.x.dtype)

    def run(self, tile: Tile | None) -> Tensor:
        """Return the product, written over the residual where there is one, in one launch or step by step."""
        weight, x = self.projection.weight, self.x
        if tile is not None and weight is not None:
            return multiplied(
                x, weight, self.projection.bias, self.residual, tile=tile, norm=self.norm, is_gated=self.is_gated
            )
        if self.norm is not None:
            x = normed(x, self.norm.weight, self.norm.eps)
        if self.is_gated:
            return gated(self.projection(x))
        return self.projection(x) if self.residual is None else self.projection.add_into(self.residual, x)


@dataclass(frozen=True, slots=True)
class _Ways:
    """The ways to compute a product, step by step first, by number; none writes over its residual."""

    product: _Product
    ways: Sequence[Tile | None]
    alike: Sequence[Projection]  # other layers'
    read_head: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.ways)

    def result(self, way: int) -> Tensor:
        return self._apart().run(self.ways[way])

    def cycle(self, way: int) -> Callable[[], None]:
        apart, tile = self._apart(), self.ways[way]
        products = [replace(apart, projection=projection) for projection in self.alike]

        def run() -> None:
            for one in products:
                one.run(tile)

        return run

    def between(self) -> Tensor:
        return self.read_head(self.product.x)

    def _apart(self) -> _Product:
        """Return the product with a copy of the residual."""
        residual = self.product.residual
        return replace(self.product, residual=None if residual is None else residual.clone())
