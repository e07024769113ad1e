"""A lean forward for the Llama kind (Llama, Mistral, Qwen2, Qwen3, Gemma 1 to 3): the same numbers, fewer calls.

Query, key and value share one projection, gate and up another. The query heads of one key-value head are folded into
the token dimension, as one row of attention alone can cost more than two in bf16 on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import ModelError
from .anatomy import Anatomy, LayerWeights, anatomy_of
from .attention import attend, attend_by_tree, attend_compiled, capped, is_compiled_attention, turned
from .forward import ForwardInput, LeftStates
from .image_cache import ImageCache, table_rows
from .joined_products import ALONE, NO_FEATURES, SHARED, Features, layers_by_kernels
from .kernel_parts import stacked
from .kernels.threads import shared_by
from .kv_cache import FeatureCache, KeyValueCache
from .layout import PREFILL_TOKENS, chain_sight, lay_out
from .places import LayerStates, Place, views_of
from .products import FusedProducts, Products
from .trial import reads_trees


class LeanModel:
    """A model of the Llama kind read from its Hugging Face form."""

    regime = "eager"

    def __init__(self, model: PreTrainedModel | Anatomy) -> None:
        """Copy the weights of `model`, of a family in `FAMILIES`, into fused form; the original may be dropped."""
        self.anatomy = anatomy = model if isinstance(model, Anatomy) else anatomy_of(model)
        self.dtype, self.device = anatomy.embedding.dtype, anatomy.embedding.device
        self._layers = anatomy.layers
        self._stacked = stacked(self._layers)
        self._width = 2 * anatomy.kv_heads * anatomy.size
        self.vocabulary, self.longest_context = anatomy.vocabulary, anatomy.longest_context
        self.hidden = anatomy.embedding.shape[1]  # size of a hidden state
        self.attention = "sdpa" if anatomy.attention_cap is None else "eager"
        self.reads_trees = reads_trees(anatomy)
        self.products = FusedProducts(anatomy)  # of forwards that read trees

    @property
    def gallery(self) -> ImageCache | None:
        """Its images; None where it has no vision."""
        return self.anatomy.gallery

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

    def new_feature_cache(self, slots: int, capacity: int, after: tuple[int, ...]) -> FeatureCache:
        """Return an empty cache with room for the hidden states after so many layers each."""
        return FeatureCache(
            layers=len(self._layers),
            slots=slots,
            capacity=capacity,
            width=self._width,
            feature_width=max(len(after), 1) * self.hidden,
            after=after,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
        return self.compute(step, cache)

    def can_resume(self, left: LeftStates) -> bool:
        """Return whether a forward can continue from there: the layers are this model's own, and it has more."""
        return left.owner is self and left.layers < len(self._layers)

    @torch.inference_mode()
    def resume(self, step: ForwardInput, cache: KeyValueCache, left: LeftStates) -> Tensor:
        """Do what `forward` does by the layers after `left` alone; writes their part of the cache."""
        return self.compute(step, cache, left)

    def compute(self, step: ForwardInput, cache: LayerStates, left: LeftStates | None = None) -> Tensor:
        """Do what `forward` or `resume` does, without inference mode: torch.compile cannot trace into that."""
        return self.answer(step, self.through_all(step, cache, left))

    def answer(self, step: ForwardInput, hidden: Tensor) -> Tensor:
        """Return the logits of a forward with hidden states (batch * n, hidden) after the last layer."""
        logits = self.normed_logits(taken(step, hidden), self._products_of(step))
        return logits.view(len(step.tokens), -1, self.vocabulary)

    def normed_logits(self, hidden: Tensor, products: Products | None = None) -> Tensor:
        """Return logits (rows, vocabulary) of hidden states before the final norm; None means the usual products."""
        products = products or self._usual_products()
        return self._capped(products.normed(hidden, self.anatomy.final_norm, self.anatomy.head))

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return hidden states (rows, hidden) as the head reads them."""
        return self.anatomy.final_norm(hidden)

    def logits(self, normed: Tensor) -> Tensor:
        """Return logits (rows, vocabulary) of hidden states after the final norm."""
        return self._capped(self.anatomy.head(normed))

    def _capped(self, logits: Tensor) -> Tensor:
        return logits if self.anatomy.logit_cap is None else capped(logits, self.anatomy.logit_cap)

    @torch.inference_mode()
    def features(self, step: ForwardInput, cache: KeyValueCache, after: Sequence[int]) -> Tensor:
        """Return (batch, n, len(after) * hidden): hidden states after so many layers, unnormed; writes the cache.

        ModelError where the model has fewer layers.
        """
        self.require_layers(after)
        kept = {count: hidden for count, hidden in enumerate(self.stream(step, cache)) if count in after}
        return torch.cat([kept[count] for count in after], dim=-1).view(*step.tokens.shape, -1)

    def prefix(self, layers: int) -> LeanModel:
        """Return an early exit, of the first layers, the final norm and the head; it shares all weights.

        ModelError where the model has fewer layers.
        """
        if not 1 <= layers <= len(self._layers):
            raise ModelError(
                f"an exit after {layers} layers does not exist in a model of {len(self._layers)}; use 1 to that"
            )
        shorter = copy(self)
        shorter._layers = self._layers[:layers]
        shorter._stacked = stacked(shorter._layers)
        return shorter

    def require_layers(self, after: Sequence[int]) -> None:
        """Raise ModelError unless there are hidden states after so many layers each."""
        if not after or not 0 <= min(after) <= max(after) <= len(self._layers):
            raise ModelError(
                f"hidden states after {tuple(after)} layers do not exist in a model of {len(self._layers)}"
            )

    def through_all(self, step: ForwardInput, cache: LayerStates, left: LeftStates | None = None) -> Tensor:
        """Return the hidden states (batch * n, hidden) of the new tokens after the last layer; see `stream`."""
        done = self.through_at_once(step, cache, left)
        if done is not None:
            return done
        for latest in self.stream(step, cache, left):
            hidden = latest  # no other layer's is kept
        return hidden

    def through_at_once(
        self, step: ForwardInput, cache: LayerStates, left: LeftStates | None = None, kept: Features = NO_FEATURES
    ) -> Tensor | None:
        """Do `through_all`, and write the `kept` features, by one compiled call; None where kernels cannot."""
        parts, states = self._stacked, cache.states
        if parts is None or not isinstance(states, Tensor):
            return None
        place, (passed, hidden) = self.place(step, cache), self._begun(step, left)
        return layers_by_kernels(self.anatomy, parts, self._layers[0], hidden, states, place, passed, kept)

    def stream(self, step: ForwardInput, cache: LayerStates, left: LeftStates | None = None) -> Iterator[Tensor]:
        """Yield the new tokens' hidden states (batch * n, hidden): embedded or of `left`, then after each layer."""
        place, (passed, hidden) = self.place(step, cache), self._begun(step, left)
        yield hidden
        yield from self._one_by_one(hidden, cache, place, passed)

    def _begun(self, step: ForwardInput, left: LeftStates | None) -> tuple[int, Tensor]:
        """Return how many layers the new tokens have passed, and the hidden states (batch * n, hidden) after these."""
        return (0, self.embed(step.tokens)) if left is None else (left.layers, left.rows(step))

    def _one_by_one(self, hidden: Tensor, cache: LayerStates, place: Place, passed: int) -> Iterator[Tensor]:
        """Yield the hidden states (batch * n, hidden) after each layer from the `passed` ones on."""
        for number, (layer, states) in enumerate(zip(self._layers, cache.states, strict=True)):
            if number < passed:
                continue
            hidden = self.through(layer, hidden, None, states, place)
            yield hidden

    def place(self, step: ForwardInput, cache: LayerStates, first: int = 0) -> Place:
        """Return the place of a forward's new tokens; without a bias they see the cache from column `first` on."""
        return Place(
            slots=slice(step.first_slot, step.first_slot + len(step.tokens)),
            columns=step.columns,
            capacity=cache.capacity,
            seen=step.seen,
            views=views_of(step, self.anatomy, first, reads_trees=self.reads_trees),
            products=self._products_of(step),
            is_shared=self._is_shared(),
        )

    def _products_of(self, step: ForwardInput) -> Products:
        return self.products if step.tree is not None and self.reads_trees else self._usual_products()

    def _usual_products(self) -> Products:
        return SHARED if self._is_shared() else ALONE

    def _is_shared(self) -> bool:
        """Return whether several threads share loops of kernels on a CPU; not where the work is traced."""
        is_on_host = self.device.type == "cpu" and not torch.compiler.is_compiling()
        return is_on_host and shared_by(torch.get_num_threads())

    def through(
        self, layer: LayerWeights, hidden: Tensor, attending: Tensor | None, states: Tensor, place: Place
    ) -> Tensor:
        """Return hidden states (rows, hidden) after one layer; writes the layer's states (slots, capacity, width).

        `attending` (rows, any) is the normed input of its attention; None means the hidden states, normed here.
        """
        view, products = place.views[layer.sight], place.products
        if attending is None and layer.by_kernels is not None:
            left = layers_by_kernels(self.anatomy, layer.by_kernels, layer, hidden, states[None], place)
            if left is not None:
                return left
        qkv = products.normed(hidden, layer.input_norm, layer.qkv) if attending is None else layer.qkv(attending)
        if view.tree is not None:
            mixed = attend_by_tree(self.anatomy, layer, qkv, states, place, view, view.tree)
        elif is_compiled_attention(self.anatomy, qkv, place, view):
            mixed = attend_compiled(self.anatomy, layer, qkv, states, place, view)
        else:
            query, pair = turned(self.anatomy, layer, qkv, view)
            states.view(-1, self._width).index_copy_(0, place.rows, pair)
            seen = states[place.slots, view.start : place.seen]
            mixed = attend(self.anatomy, query, seen, view.bias, layer.scale)
        return products.left(hidden, mixed, layer)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return (batch * n, hidden) for ids (batch, n) of tokens, and of images shown to it."""
        ids = tokens.reshape(-1)
        if self.anatomy.gallery is not None:
            ids = table_rows(ids, self.vocabulary)
        hidden = F.embedding(ids, self.anatomy.embedding)
        return hidden if self.anatomy.embedding_scale is None else hidden * self.anatomy.embedding_scale


def taken(step: ForwardInput, hidden: Tensor) -> Tensor:
    """Return those of hidden states (batch * n, hidden) whose output is wanted."""
    if step.take is None:
        return hidden
    batch, count = step.tokens.shape
    return hidden.index_select(0, step.take + torch.arange(0, batch * count, count, device=hidden.device))


def features_along(target: LeanModel, reads: Sequence[int], text: Sequence[int]) -> Tensor:
    """Return (n, len(reads) * hidden): the target's hidden states at the token before each token of a text.

    The first token has none before it; its line is zeros. `reads` counts the layers each hidden state has passed.
    """
    cache = target.new_cache(1, len(text))
    pieces = [torch.zeros(1, len(reads) * target.hidden, dtype=target.dtype, device=target.device)]
    for start in range(0, len(text), PREFILL_TOKENS):
        piece = np.array([text[start : start + PREFILL_TOKENS]], dtype=np.int64)
        count = piece.shape[1]
        sees = chain_sight(count)
        step = lay_out(piece, np.arange(count), [start], sees, dtype=target.dtype, device=target.device)
        pieces.append(target.features(step, cache, reads)[0])
    return torch.cat(pieces)[:-1]
