"""Any Hugging Face causal language model, through transformers' own forward; slower than `lean`."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from .configuration import FULL, SLIDING, declared, longest_context_of, windows_of
from .forward import ForwardInput
from .kv_cache import KeyValueCache
from .places import windowed


class GenericModel:
    """A model whose layers attend to the whole text before them, or to a window of it (see `require_supported`)."""

    gallery = None

    def __init__(self, model: PreTrainedModel, *, ranks: int = 1) -> None:
        """Wrap a model, or one rank's part; its attention must accept a 4-D additive mask (eager or sdpa)."""
        config = model.config.get_text_config()
        self.regime = "eager-transformers" if ranks == 1 else f"engine:transformers-tp{ranks}"
        self.dtype, self.device = model.dtype, model.device
        self.attention = str(config._attn_implementation)
        self.vocabulary = int(config.vocab_size)
        self.longest_context = longest_context_of(config)
        self._model, self._cache = model, cache_keyword(model)
        self._layers = int(config.num_hidden_layers)
        self._kv_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads) // ranks
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._size = int(size)
        self._window = next((window for window in windows_of(config) if window is not None), None)
        self._has_kinds = declared(config, "layer_types") is not None  # then it takes a mask for each kind of layer

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return KeyValueCache(
            layers=self._layers,
            slots=slots,
            capacity=capacity,
            width=2 * self._kv_heads * self._size,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
        output = self._model(
            input_ids=step.tokens,
            position_ids=step.positions.clamp(max=self.longest_context - 1),  # a draft may reach beyond the text
            attention_mask=self._masks(step),
            use_cache=True,
            **{self._cache: _InPlace(cache, step, self._kv_heads, self._size)},
        )
        logits: Tensor = output.logits
        if step.take is None:
            return logits
        return logits[torch.arange(len(logits), device=self.device), step.take].unsqueeze(1)

    def _masks(self, step: ForwardInput) -> Tensor | dict[str, Tensor]:
        """Return the mask (batch, 1, n, seen) of all layers, or one for each kind of layer."""
        bias = step.bias if step.tree is None else step.tree.bias(step.seen, self.dtype)
        if bias is None:
            bias = torch.zeros(*step.tokens.shape, step.seen, dtype=self.dtype, device=self.device)
        whole = bias.unsqueeze(1)
        if self._window is None:
            return whole
        narrow = windowed(whole, self._window) if self._window < step.seen else whole
        return {FULL: whole, SLIDING: narrow} if self._has_kinds else narrow


def cache_keyword(model: nn.Module) -> str:
    """Return the argument by which a model's forward takes its cache: transformers renamed it in 5.24."""
    return "cache" if "cache" in signature(model.forward).parameters else "past_key_values"


class _InPlace(Cache):
    """A cache for transformers' attention in one forward, over our memory."""

    def __init__(self, cache: KeyValueCache, step: ForwardInput, kv_heads: int, size: int) -> None:
        super().__init__(layers=[])
        self._states, self._step = cache.states, step
        self._kv_heads, self._size = kv_heads, size
        batch = len(step.tokens)
        slots = torch.arange(step.first_slot, step.first_slot + batch, device=step.tokens.device)
        self._rows = (slots.unsqueeze(1) * cache.capacity + step.columns).flatten()
        self._slots = slice(step.first_slot, step.first_slot + batch)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (batch, heads, n, size) keys and values; return all in sight, (batch, heads, seen, size)."""
        states = self._states[layer_idx]
        both = torch.cat((key_states.transpose(1, 2), value_states.transpose(1, 2)), dim=2)
        states.view(-1, states.shape[-1]).index_copy_(0, self._rows, both.flatten(0, 1).flatten(1))
        seen = states[self._slots, : self._step.seen]
        key, value = seen.view(*seen.shape[:2], 2, self._kv_heads, self._size).unbind(2)
        return key.transpose(1, 2), value.transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the positions in sight before this forward's tokens."""
        return self._step.seen - self._step.tokens.shape[1]

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """Return how many keys the mask spans, and from where."""
        return self._step.seen, 0
