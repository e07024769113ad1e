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
from ..feature_cache import FeatureCache
from .anatomy import Anatomy, LayerWeights, Sight, anatomy_of
from .forward import ForwardInput, LeftStates, TreeMask
from .gallery import Gallery, table_rows
from .kernels.fused_rows import turn_and_store
from .kernels.tree_attention import attend_tree, is_supported
from .products import STEP_BY_STEP, FusedProducts, Products
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
    tree: TreeMask | None  # what tells it instead, and to a kernel that reads it
    cosine: Tensor  # (batch, n, 1, size)
    sine: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the new tokens of one forward stand in a cache."""

    slots: slice
    rows: Tensor  # (batch * n,), of the cache's slots * capacity
    seen: int  # cache positions in sight, new tokens included
    views: list[_View]  # one per way of looking at the text
    products: Products = STEP_BY_STEP  # how layers multiply: in captured forwards on a GPU by kernels of ours, too


class LeanModel:
    """A model of the Llama kind read from its Hugging Face form."""

    regime = "eager"

    def __init__(self, model: PreTrainedModel | Anatomy) -> None:
        """Copy the weights of `model`, of a family in `FAMILIES`, into fused form; the original may be dropped."""
        self.anatomy = anatomy = model if isinstance(model, Anatomy) else anatomy_of(model)
        self.dtype, self.device = anatomy.embedding.dtype, anatomy.embedding.device
        self._layers = anatomy.layers
        self._width = 2 * anatomy.kv_heads * anatomy.size
        self.vocabulary, self.longest_context = anatomy.vocabulary, anatomy.longest_context
        self.hidden = anatomy.embedding.shape[1]  # size of a hidden state
        self.attention = "sdpa" if anatomy.attention_cap is None else "eager"
        self.reads_trees = anatomy.attention_cap is None and is_supported(self.device, self.dtype, anatomy.size)
        self.products = FusedProducts(anatomy)  # of forwards that read trees

    @property
    def gallery(self) -> Gallery | None:
        """The images that it keeps; None where it sees none."""
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
        """Whether a forward can go on from there: the layers are this model's own, and it has more."""
        return left.owner is self and left.layers < len(self._layers)

    @torch.inference_mode()
    def resume(self, step: ForwardInput, cache: KeyValueCache, left: LeftStates) -> Tensor:
        """Return what `forward` does, by the layers behind `left` alone; writes their part of the cache."""
        return self.compute(step, cache, left)

    def compute(self, step: ForwardInput, cache: LayerStates, left: LeftStates | None = None) -> Tensor:
        """Return what `forward` or `resume` does, without inference mode: torch.compile cannot trace into that."""
        for latest in self.stream(step, cache, left):
            hidden = latest  # no other layer's is kept
        return self.answer(step, hidden)

    def answer(self, step: ForwardInput, hidden: Tensor) -> Tensor:
        """Return the logits of a forward whose last layer left these hidden states, (batch * n, hidden)."""
        batch = len(step.tokens)
        logits = self.logits(self.final_norm(taken(step, hidden)))
        return logits.view(batch, -1, self.vocabulary)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Return hidden states (rows, hidden) as the head reads them."""
        return self.anatomy.final_norm(hidden)

    def logits(self, normed: Tensor) -> Tensor:
        """Return logits (rows, vocabulary) of hidden states that went through the final norm."""
        logits = self.anatomy.head(normed)
        return logits if self.anatomy.logit_cap is None else _capped(logits, self.anatomy.logit_cap)

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
        self.require_layers(after)
        kept = {count: hidden for count, hidden in enumerate(self.stream(step, cache)) if count in after}
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

    def require_layers(self, after: Sequence[int]) -> None:
        """Raise ModelError unless there are hidden states after so many layers each."""
        if not after or not 0 <= min(after) <= max(after) <= len(self._layers):
            raise ModelError(f"hidden states after {tuple(after)} layers asked of a model of {len(self._layers)}")

    def stream(self, step: ForwardInput, cache: LayerStates, left: LeftStates | None = None) -> Iterator[Tensor]:
        """Yield the hidden states (batch * n, hidden) of the new tokens: embedded, then after every layer.

        With `left` the layers that these states have passed are not run, and they are what comes first.
        """
        place = self.place(step, cache)
        passed, hidden = (0, self.embed(step.tokens)) if left is None else (left.layers, left.rows(step))
        yield hidden
        for number, (layer, states) in enumerate(zip(self._layers, cache.states, strict=True)):
            if number < passed:
                continue
            hidden = self.through(layer, hidden, None, states, place)
            yield hidden

    def place(self, step: ForwardInput, cache: LayerStates, first: int = 0) -> Place:
        """Return where the new tokens of a forward stand; without a bias they see the cache from column `first` on."""
        slots = slice(step.first_slot, step.first_slot + len(step.tokens))
        products = self.products if step.tree is not None and self.reads_trees else STEP_BY_STEP
        views = self._views(step, first)
        return Place(slots=slots, rows=rows_of(step, cache), seen=step.seen, views=views, products=products)

    def through(
        self, layer: LayerWeights, hidden: Tensor, attending: Tensor | None, states: Tensor, place: Place
    ) -> Tensor:
        """Return hidden states (rows, hidden) after one layer; writes the layer's states (slots, capacity, width).

        Args:
            layer: one of this model's shape.
            hidden: what the layer adds to.
            attending: what its attention reads, (rows, any), normed already; None: the hidden states, not yet normed.
            states: the layer's part of a cache.
            place: of the tokens.
        """
        view, products = place.views[layer.sight], place.products
        qkv = products.normed(hidden, layer.input_norm, layer.qkv) if attending is None else layer.qkv(attending)
        if view.tree is not None:
            mixed = self._attend_tree(layer, qkv, states, place, view, view.tree)
        else:
            query, pair = self._turned(layer, qkv, view)
            states.view(-1, self._width).index_copy_(0, place.rows, pair)
            mixed = self._attend(query, states[place.slots, view.start : place.seen], view.bias, layer.scale)
        hidden = products.added(hidden, mixed, layer.output, layer.output_norm)
        return products.closed(hidden, products.normed(hidden, layer.mlp_norm, layer.gate_up), layer)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return (batch * n, hidden) for ids (batch, n) of tokens, and of images shown to it."""
        ids = tokens.reshape(-1)
        if self.anatomy.gallery is not None:
            ids = table_rows(ids, self.vocabulary)
        hidden = F.embedding(ids, self.anatomy.embedding)
        return hidden if self.anatomy.embedding_scale is None else hidden * self.anatomy.embedding_scale

    def _views(self, step: ForwardInput, first: int) -> list[_View]:
        """Return one view per way of looking at the text."""
        batch, count = step.tokens.shape
        bias, groups = step.bias, self.anatomy.heads // self.anatomy.kv_heads
        is_windowed = any(sight.window is not None and sight.window < step.seen for sight in self.anatomy.sights)
        if step.tree is not None and (is_windowed or not self.reads_trees):
            bias = step.tree.bias(step.seen, self.dtype)
        if bias is not None:  # every token's line once per query head that is folded into its rows
            bias = bias.unsqueeze(2).expand(-1, -1, groups, -1).reshape(batch, 1, count * groups, step.seen)
        return [self._view(sight, step, bias, first) for sight in self.anatomy.sights]

    def _view(self, sight: Sight, step: ForwardInput, bias: Tensor | None, first: int) -> _View:
        start, tree = first if bias is None else 0, step.tree if self.reads_trees else None
        if sight.window is not None and sight.window < step.seen:
            tree = None
            if bias is None:
                start = max(first, step.seen - sight.window)
            else:
                bias = windowed(bias, sight.window)
        turns = F.embedding(_within(step, len(sight.turns)), sight.turns).unsqueeze(2)
        cosine, sine = turns.chunk(2, dim=-1)
        return _View(start=start, bias=bias, tree=tree, cosine=cosine, sine=sine)

    def _turned(self, layer: LayerWeights, qkv: Tensor, view: _View) -> tuple[Tensor, Tensor]:
        """Return queries (batch, n, heads, size), and keys and values (batch * n, width) as the cache holds them.

        Queries and keys are turned where the projection wrote them, so that keys and values lie together already.
        """
        heads, kv_heads, size = self.anatomy.heads, self.anatomy.kv_heads, self.anatomy.size
        turned = qkv.view(*view.cosine.shape[:2], -1, size)[:, :, : heads + kv_heads]
        if layer.head_norm is not None:
            turned.copy_(layer.head_norm(turned))
        rolled = turned.roll(size // 2, dims=-1)
        turned.mul_(view.cosine).addcmul_(rolled, view.sine)
        return turned[:, :, :heads], qkv[:, heads * size :]

    def _attend_tree(
        self, layer: LayerWeights, qkv: Tensor, states: Tensor, place: Place, view: _View, tree: TreeMask
    ) -> Tensor:
        """Do what `_turned`, a write and `_attend` do, by kernels that read the tree: few launches, and no mask."""
        heads, kv_heads, size = self.anatomy.heads, self.anatomy.kv_heads, self.anatomy.size
        lanes = qkv.view(*view.cosine.shape[:2], -1, size)
        if layer.head_norm is not None:
            turned = lanes[:, :, : heads + kv_heads]
            turned.copy_(layer.head_norm(turned))
        turn_and_store(qkv, view.cosine, view.sine, states, place.rows, heads=heads, kv_heads=kv_heads)
        query, own = lanes[:, :, :heads], states[place.slots]
        return attend_tree(query, own, tree.starts, tree.bits, scale=layer.scale, kv_heads=kv_heads)

    def _attend(self, query: Tensor, states: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """Mix values for (batch, n, heads, size) queries; rows of one key-value head lie together."""
        batch, count = query.shape[:2]
        kv_heads, size = self.anatomy.kv_heads, self.anatomy.size
        groups = self.anatomy.heads // kv_heads
        folded = query.reshape(batch, count, kv_heads, groups, size).transpose(1, 2)
        folded = folded.reshape(batch, kv_heads, count * groups, size)
        key, value = (part.transpose(1, 2) for part in states.view(*states.shape[:2], 2, kv_heads, size).unbind(2))
        if self.anatomy.attention_cap is None:
            mixed = F.scaled_dot_product_attention(folded, key, value, attn_mask=bias, scale=scale)
        else:
            mixed = _capped_attention(folded, key, value, bias, scale, self.anatomy.attention_cap)
        mixed = mixed.view(batch, kv_heads, count, groups, size).transpose(1, 2)  # a GPU's kernel may leave gaps in it
        return mixed.reshape(batch * count, groups * kv_heads * size)


def rows_of(step: ForwardInput, cache: LayerStates) -> Tensor:
    """Return (batch * n,): where the new tokens of a forward are written, among slots * capacity rows."""
    first, capacity = step.first_slot * cache.capacity, cache.capacity
    starts = torch.arange(first, first + len(step.tokens) * capacity, capacity, device=step.columns.device)
    return (starts.unsqueeze(1) + step.columns).view(-1)


def taken(step: ForwardInput, hidden: Tensor) -> Tensor:
    """Return those of hidden states (batch * n, hidden) whose output is wanted."""
    if step.take is None:
        return hidden
    batch, count = step.tokens.shape
    return hidden.index_select(0, step.take + torch.arange(0, batch * count, count, device=hidden.device))


def _within(step: ForwardInput, places: int) -> Tensor:
    """Return positions that a table of so many places has; beyond it lie drafts that no text ever reaches.

    Or the text of a target that is longer than its drafter can read: what is drafted there is bad, and no more.
    """
    return step.positions if step.seen <= places else step.positions.clamp(max=places - 1)


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
