"""DFlash: the newest token and masks behind it, read in one forward, say a block of tokens at once.

    f[t]    = norm(fc(h_1[t], h_2[t], ...))               a committed token by the target's states behind it
    n[t, .] = embedding(x[t], mask, mask, ...)            the block behind x[t], which the target has not read
    each layer: n = n + attention(norm(n); sees f[0..t-1] and all of n[t, .]),  n = n + mlp(norm(n))
    logits[t, i] = head(norm(n[t, i])), i >= 1            says x[t + i]

Keys and values of f are made by every layer's own projections, without its norm in front of attention. Places in the
text turn queries and keys. Embedding and head are the target's. What a place says does not depend on the other places'
tokens, so that a block gives one distribution for each depth.

Source: arXiv:2602.06036; tensors and keys as PyPI's dflash 0.1.0 reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from ...errors import ModelError
from .anatomy import NORMS, Anatomy, LayerWeights, Sight, named_layer, turns_of
from .attention import attend, capped, turned
from .block import BlockHead, Levels, wanted_rows
from .dflash_shape import DFlashShape
from .drafter_shapes import BlockShape
from .forward import ForwardInput
from .image_cache import table_rows
from .kv_cache import KeyValueCache
from .lean import LeanModel
from .norm import Norm
from .places import LayerStates, View, rows_of
from .projection import Projection
from .stored_tensors import Shape, as_numbers, held_tensors, require_tensors
from .target_sizes import TargetSizes, sizes_of


class DFlash(BlockHead):
    """A DFlash drafter beside its target; a cache holds keys and values of committed tokens, in every layer.

    Column c holds those of token c - 1, whose states come with token c; column 0 is never seen.
    """

    def __init__(self, weights: Mapping[str, Tensor], shape: BlockShape, target: LeanModel) -> None:
        """Take tensors by the names in `tensor_shapes`; ModelError where they do not fit these and the target."""
        super().__init__(target, shape.reads, shape.depth)
        self._shape = own = _own(shape)
        require_tensors("the DFlash drafter", held_tensors(weights), tensor_shapes(sizes_of(target.anatomy), shape))
        tensors = {name: as_numbers(weight, target.anatomy.embedding) for name, weight in weights.items()}
        self._joins = Projection(tensors["fc.weight"])
        self._feature_norm = Norm(weight=tensors["hidden_norm.weight"], eps=own.eps)
        self._body = _DFlashLayers(_anatomy(tensors, own, target))

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._body.new_cache(slots, capacity)

    @torch.inference_mode()
    def keep(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> None:
        """Write keys and values of the tokens before those committed now."""
        joined = self._feature_norm(self._joins(features.flatten(0, 1)))
        self._body.remember(joined, (step.positions - 1).clamp(min=0), rows_of(step, cache), cache)

    @torch.inference_mode()
    def say(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return (rows, places, vocabulary): logits of every place after the wanted tokens."""
        batch, block = len(step.tokens), self._shape.block
        tokens, columns, positions = (
            wanted_rows(step, each.unsqueeze(2)).view(batch, -1) for each in (step.tokens, step.columns, step.positions)
        )
        ids = tokens.new_full((batch, tokens.shape[1], block), self._shape.mask)
        ids[:, :, 0] = tokens
        places = positions.unsqueeze(2) + torch.arange(block, device=self.device)
        slots = slice(step.first_slot, step.first_slot + batch)
        seen = [states[slots, : step.seen] for states in cache.states]
        said = self._body.through_block(self._embedded(ids), places.flatten(1), columns, seen)
        return self._logits(said[:, 1:].flatten(0, 1)).view(len(said), self.depth, -1)

    def block(self, said: Tensor) -> Levels:
        """Return the block of what `say` returned: one level per place."""
        return Levels(said)

    def _embedded(self, ids: Tensor) -> Tensor:
        """Return (batch, n, block, hidden) of ids (batch, n, block), without the target's own scale."""
        own = self._target.anatomy
        if own.gallery is not None:
            ids = table_rows(ids, self.vocabulary)
        return F.embedding(ids, own.embedding) * self._shape.embedding_scale

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return (rows, vocabulary) by the target's head, without the target's own cap."""
        logits = self._target.anatomy.head(self._body.final_norm(hidden)) * self._shape.logit_scale
        return capped(logits, self._shape.logit_cap) if self._shape.logit_cap else logits


class _DFlashLayers(LeanModel):
    """The layers of a DFlash drafter."""

    def remember(self, joined: Tensor, positions: Tensor, rows: Tensor, cache: LayerStates) -> None:
        """Write keys and values of features (batch * n, hidden) at positions (batch, n) into all layers' `rows`."""
        view = self._view(positions)
        for layer, states in zip(self._layers, cache.states, strict=True):
            _, pair = turned(self.anatomy, layer, layer.qkv(joined), view)
            states.view(-1, self._width).index_copy_(0, rows, pair)

    def through_block(self, embedded: Tensor, positions: Tensor, columns: Tensor, seen: list[Tensor]) -> Tensor:
        """Return (batch * n, block, hidden) for blocks (batch, n, block, hidden) behind tokens at columns (batch, n).

        `positions` (batch, n * block) are places in the text; `seen` (batch, columns, width) is each layer's cache.
        """
        batch, count, block, hidden = embedded.shape
        view, bias = self._view(positions), self._bias(columns, seen[0].shape[1], block)
        x = embedded.reshape(batch * count * block, hidden)
        for layer, text in zip(self._layers, seen, strict=True):
            query, pair = turned(self.anatomy, layer, layer.qkv(layer.input_norm(x)), view)
            keys = torch.cat((text, pair.reshape(batch, count * block, -1)), dim=1)
            x = layer.output.added_to(x, attend(self.anatomy, query, keys, bias, layer.scale))
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
            x = layer.down.added_to(x, layer.activation(gate).mul_(up))
        return x.view(batch * count, block, hidden)

    def _view(self, positions: Tensor) -> View:
        sight = self.anatomy.sights[0]
        within = positions.clamp(max=len(sight.turns) - 1)  # beyond lie places that no text reaches
        return View(start=0, bias=None, tree=None, positions=within, sight=sight)

    def _bias(self, columns: Tensor, seen: int, block: int) -> Tensor:
        """Return (batch, 1, n * block * groups, seen + n * block): a block sees the text before it, and itself."""
        batch, count = columns.shape
        places = torch.arange(seen, device=self.device)
        text = ((places >= 1) & (places <= columns.unsqueeze(2))).unsqueeze(2).expand(-1, -1, block, -1)
        numbers = torch.arange(count, device=self.device).repeat_interleave(block)
        fellows = (numbers.unsqueeze(1) == numbers).expand(batch, -1, -1)
        is_open = torch.cat((text.reshape(batch, count * block, seen), fellows), dim=2)
        is_open = is_open.repeat_interleave(self.anatomy.heads // self.anatomy.kv_heads, dim=1)
        bias = torch.zeros(is_open.shape, dtype=self.dtype, device=self.device)
        return bias.masked_fill_(~is_open, -torch.inf).unsqueeze(1)


def tensor_shapes(target: TargetSizes, shape: BlockShape) -> dict[str, Shape]:
    """Return the shape of every tensor of a DFlash drafter; ModelError where it is another target's."""
    own = _own(shape)
    if own.of_layers not in (0, target.layers) or max(own.reads) >= target.layers or own.mask >= target.vocabulary:
        raise ModelError(
            f"the DFlash drafter reads states after {', '.join(map(str, own.reads))} of {own.of_layers or 'some'} "
            f"layers and masks with the token {own.mask}; this target has {target.layers} layers, the last of which is "
            f"not read, and {target.vocabulary} tokens; give the drafter of this target"
        )
    hidden, queries, pairs = target.hidden, own.heads * own.size, own.kv_heads * own.size
    found: dict[str, Shape] = {
        "fc.weight": (hidden, len(own.reads) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for number in range(own.layers):
        begins = f"layers.{number}."
        wide = {"q": (queries, hidden), "k": (pairs, hidden), "v": (pairs, hidden), "o": (hidden, queries)}
        found |= {f"{begins}{name}.weight": (hidden,) for name in NORMS}
        found |= {f"{begins}self_attn.{one}_proj.weight": size for one, size in wide.items()}
        if own.has_bias:
            found |= {f"{begins}self_attn.{one}_proj.bias": size[:1] for one, size in wide.items()}
        found |= {f"{begins}self_attn.{one}_norm.weight": (own.size,) for one in "qk"}
        found |= {f"{begins}mlp.{one}_proj.weight": (own.inner, hidden) for one in ("gate", "up")}
        found[f"{begins}mlp.down_proj.weight"] = (hidden, own.inner)
    return found


def _own(shape: BlockShape) -> DFlashShape:
    assert shape.dflash is not None, "a shape of kind dflash has its layers"
    return shape.dflash


def _anatomy(tensors: Mapping[str, Tensor], shape: DFlashShape, target: LeanModel) -> Anatomy:
    own = target.anatomy
    config = Qwen3Config(
        hidden_size=shape.hidden, num_attention_heads=shape.heads, head_dim=shape.size, **dict(shape.rope)
    )
    turns = turns_of(Qwen3RotaryEmbedding(config).to(own.embedding.device), own.longest_context, own.embedding[0])
    return replace(
        own,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        size=shape.size,
        embedding_scale=None,
        sights=(Sight(window=None, turns=turns),),
        layers=tuple(_layer(tensors, f"layers.{number}.", shape) for number in range(shape.layers)),
        final_norm=Norm(weight=tensors["norm.weight"], eps=shape.eps),
        attention_cap=None,
        logit_cap=None,
        gallery=None,
    )


def _layer(tensors: Mapping[str, Tensor], begins: str, shape: DFlashShape) -> LayerWeights:
    """Return a Llama layer whose queries and keys are normed head by head."""
    counts = {"q": shape.heads, "k": shape.kv_heads}
    lines = [tensors[f"{begins}self_attn.{one}_norm.weight"].expand(count, -1) for one, count in counts.items()]
    layer = named_layer(tensors, begins, NORMS, shape.eps, shape.size)
    return replace(layer, head_norm=Norm(weight=torch.cat(lines), eps=shape.eps))
