"""A lean forward for the Llama family (Llama, Mistral, Qwen2, Qwen3): the same numbers, fewer calls.

Query, key and value share one projection, gate and up another; the cache is preallocated; the
query heads of one key-value head are folded into the token dimension, so that even one token
meets attention as several rows (one row alone can be dearer than two in bf16 on a CPU).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import ModelError
from ..cache import KeyValueCache
from .forward import ForwardInput
from .projection import Projection

DRAFT_DEPTH = 64  # positions beyond the longest context that draft nodes may reach
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer; a model without head norms has None there."""

    input_norm: Tensor
    qkv: Projection
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


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


class LeanModel:
    """A Llama-family model read from its Hugging Face form."""

    regime = "eager"
    attention = "sdpa"

    def __init__(self, model: PreTrainedModel) -> None:
        """Copy the weights of `model` into fused form; the original may be dropped."""
        config = model.config
        self.dtype, self.device = model.dtype, model.device
        self.vocabulary = int(config.vocab_size)
        self.longest_context = int(config.max_position_embeddings)
        self._heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._size = int(getattr(config, "head_dim", None) or config.hidden_size // self._heads)
        self._eps = float(config.rms_norm_eps)
        base = model.model
        self._embedding = base.embed_tokens.weight.detach()
        self._final_norm = base.norm.weight.detach()
        self._head = Projection(model.lm_head.weight.detach())
        self._layers = [_fuse(layer) for layer in base.layers]
        self._cosine, self._sine = _rotary_tables(
            base.rotary_emb, self.longest_context + DRAFT_DEPTH, self.device, self.dtype
        )

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        width = 2 * self._kv_heads * self._size
        return KeyValueCache(
            layers=len(self._layers),
            slots=slots,
            capacity=capacity,
            width=width,
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
            hidden = hidden.view(batch, count, -1)[torch.arange(batch, device=self.device), step.take]
        hidden = F.rms_norm(hidden, (hidden.shape[-1],), self._final_norm, self._eps)
        return self._head(hidden).view(batch, -1, self.vocabulary)

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
        batch, count = step.tokens.shape
        hidden = F.embedding(step.tokens.reshape(-1), self._embedding)
        cosine, sine = self._cosine[step.positions], self._sine[step.positions]  # (batch, n, 1, size)
        groups = self._heads // self._kv_heads
        bias = None if step.bias is None else step.bias.repeat_interleave(groups, dim=1).unsqueeze(1)
        slots = torch.arange(step.first_slot, step.first_slot + batch, device=self.device).unsqueeze(1)
        rows = (slots * cache.capacity + step.columns).view(-1)
        last = step.first_slot + batch
        yield hidden
        for layer, states in zip(self._layers, cache.states, strict=True):
            normed = F.rms_norm(hidden, (hidden.shape[-1],), layer.input_norm, self._eps)
            qkv = layer.qkv(normed).view(batch, count, -1, self._size)
            query, key = self._rotate(layer, qkv, cosine, sine)
            states.view(-1, states.shape[-1]).index_copy_(0, rows, self._pair(key, qkv))
            mixed = self._attend(query, states[step.first_slot : last, : step.seen], bias)
            hidden = layer.output.added_to(hidden, mixed)
            normed = F.rms_norm(hidden, (hidden.shape[-1],), layer.mlp_norm, self._eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=-1)
            hidden = layer.down.added_to(hidden, F.silu(gate) * up)
            yield hidden

    def _rotate(self, layer: LayerWeights, qkv: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
        both = qkv[:, :, : self._heads + self._kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = F.rms_norm(both[:, :, : self._heads], (self._size,), layer.query_norm, self._eps)
            key = F.rms_norm(both[:, :, self._heads :], (self._size,), layer.key_norm, self._eps)
            both = torch.cat((query, key), dim=2)
        turned = both * cosine + both.roll(self._size // 2, dims=-1) * sine
        return turned[:, :, : self._heads], turned[:, :, self._heads :]

    def _pair(self, key: Tensor, qkv: Tensor) -> Tensor:
        value = qkv[:, :, self._heads + self._kv_heads :]
        return torch.cat((key, value), dim=2).view(-1, 2 * self._kv_heads * self._size)

    def _attend(self, query: Tensor, states: Tensor, bias: Tensor | None) -> Tensor:
        """Mix values for (batch, n, heads, size) queries; rows of one key-value head lie together."""
        batch, count = query.shape[:2]
        kv_heads, size = self._kv_heads, self._size
        groups = self._heads // kv_heads
        folded = query.reshape(batch, count, kv_heads, groups, size).transpose(1, 2)
        folded = folded.reshape(batch, kv_heads, count * groups, size)
        key, value = states.view(*states.shape[:2], 2, kv_heads, size).unbind(2)
        mixed = F.scaled_dot_product_attention(folded, key.transpose(1, 2), value.transpose(1, 2), attn_mask=bias)
        mixed = mixed.view(batch, kv_heads, count, groups * size).transpose(1, 2)
        return mixed.reshape(batch * count, self._heads * size)


def _fuse(layer: Any) -> LayerWeights:  # Any: transformers types no family's layer
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    bias = None if projections[0].bias is None else torch.cat([p.bias.detach() for p in projections])
    output = attention.o_proj
    return LayerWeights(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=Projection(torch.cat([p.weight.detach() for p in projections]), bias),
        query_norm=attention.q_norm.weight.detach() if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight.detach() if hasattr(attention, "k_norm") else None,
        output=Projection(output.weight.detach(), None if output.bias is None else output.bias.detach()),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=Projection(torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])),
        down=Projection(mlp.down_proj.weight.detach()),
    )


def _rotary_tables(
    rotary: torch.nn.Module, positions: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cosine and signed sine, (positions, 1, size): x * cosine + roll(x, size/2) * sine turns x."""
    ids = torch.arange(positions, device=device).unsqueeze(0)
    cosine, sine = rotary(torch.zeros(1, device=device, dtype=dtype), ids)
    sign = torch.ones(sine.shape[-1], device=device, dtype=dtype)
    sign[: len(sign) // 2] = -1
    return cosine[0].unsqueeze(1), (sine[0] * sign).unsqueeze(1)
