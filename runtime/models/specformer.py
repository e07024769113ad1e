"""SpecFormer: from the states of a verification, all places of the next draft at once, which see each other.

    r[t]    = join(norms(h_1[t - 1], h_2[t - 1], ..., embedding))      a committed token, beside the states before it
    c[t]    = r[t] + attention(r[t]; sees r[1..t])                     causal, its keys and values in a cache
    D[t, i] = W_i norm(c[t]) + b_i                                     place i behind it; nothing is added to
    E[t, .] = D[t, .] + attention(D[t, .]; sees D[t, .])               both ways, no turns: b_i tells places apart
    logits[t, i] = lm_head(final_norm(E[t, i] + mlp(norm(E[t, i]))))   says x[t + 1 + i]

The published form runs before x[t] is known and joins the embedding of x[t - 1], to which the states belong. Here x[t]
is known, and its embedding is joined; with 0 among `reads`, as published. A state after all layers has passed the
target's final norm, as in the published code. `join` may be narrower than the target: only r and c have that width. The
first token of a text has no state before it and is never seen.

Source: Shi et al. 2026, SpecFormer, arXiv:2511.20340; as published the attention between places goes both ways, which
one snapshot of the public code does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from .anatomy import NORMS, Anatomy, Sight, named_layer
from .attention import attend, turned
from .block import BlockBody, BlockHead, Levels, wanted_rows
from .drafter_shapes import BlockShape
from .forward import ForwardInput
from .kv_cache import KeyValueCache
from .lean import LeanModel
from .norm import Norm
from .places import LayerStates, Place
from .projection import Projection
from .stored_tensors import Shape, as_numbers, held_tensors, require_tensors
from .target_sizes import TargetSizes, sizes_of


class SpecFormer(BlockHead):
    """A SpecFormer beside its target; a cache of one layer holds keys and values of committed tokens."""

    def __init__(self, weights: Mapping[str, Tensor], shape: BlockShape, target: LeanModel) -> None:
        """Take tensors by the names in `tensor_shapes`; ModelError where they do not fit these and the target."""
        super().__init__(target, shape.reads, shape.depth)
        require_tensors("the SpecFormer", held_tensors(weights), tensor_shapes(sizes_of(target.anatomy), shape))
        tensors = {name: as_numbers(weight, target.anatomy.embedding) for name, weight in weights.items()}
        eps = target.anatomy.final_norm.eps
        self._norms = Norm(weight=tensors["norms.weight"], eps=eps)
        self._joins = Projection(tensors["join.weight"])
        self._place_norm = Norm(weight=tensors["place_norm.weight"], eps=eps)
        self._places = Projection(tensors["places.weight"], tensors["places.bias"])
        self._body = _SpecFormerAttentions(_anatomy(tensors, target))

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._body.new_cache(slots, capacity)

    @torch.inference_mode()
    def keep(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> None:
        """Write keys and values of committed tokens."""
        joined = self._joined(step.tokens, features.flatten(0, 1))
        self._body.remember(joined, cache, self._body.place(step, cache))

    @torch.inference_mode()
    def say(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return (rows, places, vocabulary): logits of every place after the wanted tokens."""
        batch = len(step.tokens)
        tokens, columns, positions = (
            wanted_rows(step, each.unsqueeze(2)).view(batch, -1) for each in (step.tokens, step.columns, step.positions)
        )
        asking = replace(
            step, tokens=tokens, columns=columns, positions=positions, bias=self._bias(columns, step.seen), take=None
        )
        joined = self._joined(tokens, wanted_rows(step, features))
        seen = self._body.through_text(joined, cache, self._body.place(asking, cache))
        places = self._places(self._place_norm(seen)).view(len(seen), self.depth, -1)
        normed = self._target.final_norm(self._body.through_places(places))
        return self._target.logits(normed).view(len(seen), self.depth, -1)

    def block(self, said: Tensor) -> Levels:
        """Return the block of what `say` returned: one level per place."""
        return Levels(said)

    def _joined(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return (batch * n, width) for tokens (batch, n) and features (batch * n, len(reads) * hidden)."""
        whole = len(self._target.anatomy.layers)
        parts = [
            self._target.final_norm(part) if count == whole else part
            for count, part in zip(self.reads, features.chunk(len(self.reads), dim=-1), strict=True)
        ]
        if 0 not in self.reads:
            parts.append(self._target.embed(tokens))
        return self._joins(self._norms(torch.stack(parts, dim=1)).flatten(1))

    def _bias(self, columns: Tensor, seen: int) -> Tensor:
        """Return (batch, n, seen): a token at a column (batch, n) sees itself and what precedes it but the first."""
        own = columns.unsqueeze(2)
        places = torch.arange(seen, device=self.device)
        is_open = (places <= own) & (places >= own.clamp(max=1))  # the first sees itself: nobody wants what it says
        bias = torch.zeros(is_open.shape, dtype=self.dtype, device=self.device)
        return bias.masked_fill_(~is_open, -torch.inf)


class _SpecFormerAttentions(BlockBody):
    """Both attentions, with the target's heads: that to the text, and that between the places of a draft."""

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        return KeyValueCache(
            layers=1, slots=slots, capacity=capacity, width=self._width, dtype=self.dtype, device=self.device
        )

    def through_text(self, joined: Tensor, cache: LayerStates, place: Place) -> Tensor:
        """Return tokens (batch * n, width) after attention to the text, themselves included."""
        (states,), layer, view = cache.states, self._layers[0], place.views[0]
        query, _ = turned(self.anatomy, layer, layer.qkv(layer.input_norm(joined)), view)
        mixed = attend(self.anatomy, query, states[place.slots, : place.seen], view.bias, layer.scale)
        return layer.output.added_to(joined, mixed)

    def through_places(self, places: Tensor) -> Tensor:
        """Return (rows * places, hidden) for (rows, places, hidden), after attention between a row's places."""
        rows, count, _ = places.shape
        layer, heads, size = self._layers[1], self.anatomy.heads, self.anatomy.size
        hidden = places.flatten(0, 1)
        qkv = layer.qkv(layer.input_norm(hidden)).view(rows, count, -1)
        query, pair = qkv[..., : heads * size].reshape(rows, count, heads, size), qkv[..., heads * size :]
        mixed = attend(self.anatomy, query, pair, None, layer.scale)
        hidden = layer.output.added_to(hidden, mixed)
        gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, dim=-1)
        return layer.down.added_to(hidden, layer.activation(gate).mul_(up))


def tensor_shapes(target: TargetSizes, shape: BlockShape) -> dict[str, Shape]:
    """Return the shape of every tensor of a SpecFormer, whose attentions have the target's heads."""
    hidden, width, inner = target.hidden, shape.width, shape.intermediate
    inputs = len(shape.reads) + (0 not in shape.reads)
    queries, pairs = target.queries, target.pairs
    found: dict[str, Shape] = {"norms.weight": (inputs, hidden), "join.weight": (width, inputs * hidden)}
    for name, size in (("context", width), ("draft", hidden)):
        found |= {
            f"{name}.input_layernorm.weight": (size,),
            f"{name}.self_attn.q_proj.weight": (queries, size),
            f"{name}.self_attn.k_proj.weight": (pairs, size),
            f"{name}.self_attn.v_proj.weight": (pairs, size),
            f"{name}.self_attn.o_proj.weight": (size, queries),
        }
    return found | {
        "place_norm.weight": (width,),
        "places.weight": (shape.depth * hidden, width),
        "places.bias": (shape.depth * hidden,),
        "draft.post_attention_layernorm.weight": (hidden,),
        "draft.mlp.gate_proj.weight": (inner, hidden),
        "draft.mlp.up_proj.weight": (inner, hidden),
        "draft.mlp.down_proj.weight": (hidden, inner),
    }


def _anatomy(tensors: Mapping[str, Tensor], target: LeanModel) -> Anatomy:
    """Return both attentions as a model's layers; that to the text has the turns of the target's first layer."""
    own = target.anatomy
    sight = Sight(window=None, turns=own.sights[own.layers[0].sight].turns)
    eps = own.final_norm.eps

    def fused(names: str) -> Projection:
        return Projection(torch.cat([tensors[f"context.self_attn.{name}_proj.weight"] for name in names]))

    draft = named_layer(tensors, "draft.", NORMS, eps, own.size)
    norm = Norm(weight=tensors["context.input_layernorm.weight"], eps=eps)
    context = replace(draft, input_norm=norm, qkv=fused("qkv"), output=fused("o"))  # its MLP is never run
    return replace(
        own, sights=(sight,), layers=(context, draft), embedding_scale=None, attention_cap=None, logit_cap=None
    )
