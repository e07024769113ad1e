"""A lean forward for the Llama kind (Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3): the same numbers, fewer calls.

Query, key and value share one projection, gate and up another; the cache is preallocated; the
query heads of one key-value head are folded into the token dimension, so that even one token
meets attention as several rows (one row alone can be dearer than two in bf16 on a CPU).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import ModelError
from ..cache import KeyValueCache
from .anatomy import LayerWeights, Sight, anatomy_of
from .forward import ForwardInput
from .norm import Norm
from .projection import Projection
from .window import windowed


class LayerStates(Protocol):
    """What a forward needs of a cache."""

    @property
    def states(self) -> Iterable[Tensor]:
        """One (slots, capacity, width) of keys and values per layer."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens per slot."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What the new tokens of one forward see in layers that look at the text alike, and how they are turned."""

    start: int  # first cache position in sight
    bias: Tensor | None  # (batch, 1, n * groups, seen - start)
    cosine: Tensor  # (batch, n, 1, size)
    sine: Tensor


class LeanModel:
    """A model of the Llama kind read from its Hugging Face form."""

    regime = "eager"

    def __init__(self, model: PreTrainedModel) -> None:
        """Copy the weights of `model`, of a family in `FAMILIES`, into fused form; the original may be dropped."""
        self.dtype, self.device = model.dtype, model.device
        self._anatomy = anatomy = anatomy_of(model)
        self._layers = anatomy.layers
        self._width = 2 * anatomy.kv_heads * anatomy.size
        self.vocabulary, self.longest_context = anatomy.vocabulary, anatomy.longest_context
        self.attention = "sdpa" if anatomy.attention_cap is None else "eager"

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return KeyValueCache(
            layers=len(self._layers),
            slots=slots,
            capacity=capacity,
            width=self._width,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
        return self.compute(step, cache)

    def compute(self, step: ForwardInput, cache: LayerStates) -> Tensor:
        """Return what `forward` does, without inference mode: torch.compile cannot trace into that."""
        batch, count = step.tokens.shape
        for latest in self._stream(step, cache):
            hidden = latest  # no other layer's is kept
        if step.take is not None:
            hidden = hidden.index_select(0, step.take + torch.arange(0, batch * count, count, device=self.device))
        logits = self._anatomy.head(self._anatomy.final_norm(hidden))
        if self._anatomy.logit_cap is not None:
            logits = _capped(logits, self._anatomy.logit_cap)
        return logits.view(batch, -1, self.vocabulary)

    @torch.inference_mode()
    def features(self, step: ForwardInput, cache: KeyValueCache, after: Sequence[int]) -> Tensor:
        """Return hidden states, before any final norm, for a head that drafts from them; writes the cache.

        Args:
            step: the tokens to read.
            cache: of this model.
            after: how many layers each of the wanted hidden states has passed, 0 being the embedding.

        Returns:
            (batch, n, len(after) * hidden), joined in the order of `after`.

        Raises:
            ModelError: the model has fewer layers.
        """
        if not after or not 0 <= min(after) <= max(after) <= len(self._layers):
            raise ModelError(f"hidden states after {tuple(after)} layers asked of a model of {len(self._layers)}")
        kept = {count: hidden for count, hidden in enumerate(self._stream(step, cache)) if count in after}
        return torch.cat([kept[count] for count in after], dim=-1).view(*step.tokens.shape, -1)

    def prefix(self, layers: int) -> LeanModel:
        """Return the model of the first layers, the final norm and the head: an early exit. It shares all weights.

        Raises:
            ModelError: the model has fewer layers.
        """
        if not 1 <= layers <= len(self._layers):
            raise ModelError(f"an exit after {layers} layers asked of a model of {len(self._layers)}; use 1 to that")
        shorter = copy(self)
        shorter._layers = self._layers[:layers]
        return shorter

    def _stream(self, step: ForwardInput, cache: LayerStates) -> Iterator[Tensor]:
        """Yield the hidden states (batch * n, hidden) of the new tokens: embedded, then after every layer."""
        slots, capacity = slice(step.first_slot, step.first_slot + len(step.tokens)), cache.capacity
        starts = torch.arange(slots.start * capacity, slots.stop * capacity, capacity, device=self.device)
        rows = (starts.unsqueeze(1) + step.columns).view(-1)
        views = self._views(step)
        hidden = self._embed(step.tokens)
        yield hidden
        for layer, states in zip(self._layers, cache.states, strict=True):
            view = views[layer.sight]
            query, pair = self._project(layer, hidden, view)
            states.view(-1, self._width).index_copy_(0, rows, pair)
            mixed = self._attend(query, states[slots, view.start : step.seen], view.bias, layer.scale)
            hidden = _added(hidden, mixed, layer.output, layer.output_norm)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
            hidden = _added(hidden, layer.activation(gate).mul_(up), layer.down, layer.down_norm)
            yield hidden

    def _embed(self, tokens: Tensor) -> Tensor:
        hidden = F.embedding(tokens.reshape(-1), self._anatomy.embedding)
        return hidden if self._anatomy.embedding_scale is None else hidden * self._anatomy.embedding_scale

    def _views(self, step: ForwardInput) -> list[_View]:
        """Return one view per way of looking at the text."""
        batch, count = step.tokens.shape
        bias, groups = step.bias, self._anatomy.heads // self._anatomy.kv_heads
        if bias is not None:  # every token's line once per query head that is folded into its rows
            bias = bias.unsqueeze(2).expand(-1, -1, groups, -1).reshape(batch, 1, count * groups, step.seen)
        return [self._view(sight, step, bias) for sight in self._anatomy.sights]

    def _view(self, sight: Sight, step: ForwardInput, bias: Tensor | None) -> _View:
        start = 0
        if sight.window is not None and sight.window < step.seen:
            if bias is None:
                start = step.seen - sight.window
            else:
                bias = windowed(bias, sight.window)
        turns = F.embedding(step.positions, sight.turns).unsqueeze(2)
        cosine, sine = turns.chunk(2, dim=-1)
        return _View(start=start, bias=bias, cosine=cosine, sine=sine)

    def _project(self, layer: LayerWeights, hidden: Tensor, view: _View) -> tuple[Tensor, Tensor]:
        """Return queries (batch, n, heads, size), and keys and values (batch * n, width) as the cache holds them.

        Queries and keys are turned where the projection wrote them, so that keys and values lie together already.
        """
        heads, kv_heads, size = self._anatomy.heads, self._anatomy.kv_heads, self._anatomy.size
        qkv = layer.qkv(layer.input_norm(hidden))
        turned = qkv.view(*view.cosine.shape[:2], -1, size)[:, :, : heads + kv_heads]
        if layer.head_norm is not None:
            turned.copy_(layer.head_norm(turned))
        rolled = turned.roll(size // 2, dims=-1)
        turned.mul_(view.cosine).addcmul_(rolled, view.sine)
        return turned[:, :, :heads], qkv[:, heads * size :]

    def _attend(self, query: Tensor, states: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """Mix values for (batch, n, heads, size) queries; rows of one key-value head lie together."""
        batch, count = query.shape[:2]
        kv_heads, size = self._anatomy.kv_heads, self._anatomy.size
        groups = self._anatomy.heads // kv_heads
        folded = query.reshape(batch, count, kv_heads, groups, size).transpose(1, 2)
        folded = folded.reshape(batch, kv_heads, count * groups, size)
        key, value = (part.transpose(1, 2) for part in states.view(*states.shape[:2], 2, kv_heads, size).unbind(2))
        if self._anatomy.attention_cap is None:
            mixed = F.scaled_dot_product_attention(folded, key, value, attn_mask=bias, scale=scale)
        else:
            mixed = _capped_attention(folded, key, value, bias, scale, self._anatomy.attention_cap)
        mixed = mixed.view(batch, kv_heads, count, groups * size).transpose(1, 2)
        return mixed.reshape(batch * count, groups * kv_heads * size)


def _added(residual: Tensor, x: Tensor, projection: Projection, norm: Norm | None) -> Tensor:
    """Return residual + norm(projection(x)), or without the norm."""
    return projection.added_to(residual, x) if norm is None else residual + norm(projection(x))


def _capped(x: Tensor, cap: float) -> Tensor:
    """Squash x into (-cap, cap) where it lies.

    Source: Gemma Team 2024, arXiv:2408.00118, Sec. 2, "logit soft-capping".
    """
    return x.div_(cap).tanh_().mul_(cap)


def _capped_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, cap: float
) -> Tensor:
    """Return what scaled_dot_product_attention does, with scores squashed into (-cap, cap) before the mask."""
    scores = _capped(torch.matmul(query, key.transpose(2, 3)).mul_(scale), cap)
    if bias is not None:
        scores += bias
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return torch.matmul(weights.to(value.dtype), value)
