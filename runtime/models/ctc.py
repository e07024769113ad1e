"""A CTC drafter: one layer answers frames after the newest token; each predicts a token, or nothing.

    r[t]    = join(embedding(x[t]), final_norm(h[t - 1]))         a committed token, beside the state before it
    e[t, f] = r[t] + q[f]                                         frame f after it
    o[t, f] = layer(e[t, f]; sees r[1..t] and all e[t, .])        attention both ways between the frames
    log P[t, f] = log softmax(lm_head(final_norm(o)), blank . final_norm(o))

Equal neighbouring frames count once, and blanks are left out (`Frames`). Norm and language-model head are the
target's. The first token of a text has no state before it and is never seen.

Source: Wen, Gui, Feng 2024, CTC-drafter, arXiv:2412.00061, Sec. 3, with parallel frames and a separate blank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .anatomy import NORMS, Anatomy, Sight, named_layer
from .block import APART, BlockBody, BlockHead, wanted_rows
from .drafter_shapes import BlockShape
from .forward import ForwardInput
from .kv_cache import KeyValueCache
from .lean import LeanModel
from .places import LayerStates, Place
from .projection import Projection
from .stored_tensors import Shape, as_numbers, held_tensors, require_tensors
from .target_sizes import TargetSizes, sizes_of

GROUPS = 16  # tokens of a text whose frames are answered together where many are asked for


class CtcHead(BlockHead):
    """A CTC drafter beside its target; a cache of one layer holds keys and values of committed tokens."""

    def __init__(self, weights: Mapping[str, Tensor], shape: BlockShape, target: LeanModel) -> None:
        """Take tensors by the names in `tensor_shapes`; ModelError where they do not fit these and the target."""
        super().__init__(target, shape.reads, shape.depth)
        require_tensors("the CTC drafter", held_tensors(weights), tensor_shapes(sizes_of(target.anatomy), shape))
        tensors = {name: as_numbers(weight, target.anatomy.embedding) for name, weight in weights.items()}
        self.frames = shape.frames
        self._joins = Projection(tensors["join.weight"])
        self._queries, self._blank = tensors["queries.weight"], tensors["blank.weight"]
        self._body = _CtcLayer(_anatomy(tensors, target))

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens, with room for their frames."""
        return self._body.new_cache(slots, capacity + GROUPS * self.frames)

    @torch.inference_mode()
    def keep(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> None:
        """Write keys and values of committed tokens."""
        joined = self._joined(step.tokens, features.flatten(0, 1))
        self._body.remember(joined, cache, self._body.place(step, cache))

    @torch.inference_mode()
    def say(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return (rows, frames, vocabulary + 1): log-probabilities of every frame, the blank's last."""
        batch = len(step.tokens)
        each = self._joined(step.tokens, features.flatten(0, 1)).view(*step.tokens.shape, -1)
        joined = wanted_rows(step, each).view(batch, -1, each.shape[2])
        columns, positions = (
            wanted_rows(step, one.unsqueeze(2)).view(batch, -1, 1) for one in (step.columns, step.positions)
        )
        room = max((cache.capacity - step.seen) // self.frames, 1)
        said = []
        for start in range(0, joined.shape[1], room):
            some = slice(start, start + room)
            said.append(self._said(joined[:, some], columns[:, some], positions[:, some], step, cache))
        return torch.cat(said, dim=1).flatten(0, 1)

    def block(self, said: Tensor) -> Frames:
        """Return the block of what `say` returned."""
        return Frames(said)

    def _said(
        self, joined: Tensor, columns: Tensor, positions: Tensor, step: ForwardInput, cache: KeyValueCache
    ) -> Tensor:
        """Return (batch, n, frames, vocabulary + 1) after tokens at (batch, n, 1) columns and positions."""
        batch, count = joined.shape[:2]
        own = torch.arange(count * self.frames, device=self.device)
        seen = step.seen + len(own)
        cache.require(seen)
        place = (positions + 1 + torch.arange(self.frames, device=self.device)).flatten(1)
        frames = ForwardInput(
            tokens=torch.zeros(batch, len(own), dtype=torch.int64, device=self.device),
            positions=place.clamp(max=self.longest_context - 1),
            columns=(step.seen + own).expand(batch, -1),
            bias=self._bias(columns, step.seen, seen),
            seen=seen,
            first_slot=step.first_slot,
        )
        entered = (joined.unsqueeze(2) + self._queries).flatten(0, 2)
        left = self._body.through_layer(entered, cache, self._body.place(frames, cache))
        normed = self._target.final_norm(left)
        logits = torch.cat((self._target.logits(normed), F.linear(normed, self._blank)), dim=-1)
        return torch.log_softmax(logits.float(), dim=-1).view(batch, count, self.frames, -1)

    def _joined(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Return (batch * n, hidden)."""
        return self._joins(torch.cat((self._target.embed(tokens), self._target.final_norm(features)), dim=-1))

    def _bias(self, columns: Tensor, text: int, seen: int) -> Tensor:
        """Return (batch, n * frames, seen): a frame sees its own token, the text before, and its fellow frames."""
        batch, count = columns.shape[:2]
        places = torch.arange(seen, device=self.device)
        is_text = (places >= 1) & (places < text) & (places <= columns)  # (batch, n, seen)
        group = torch.arange(count, device=self.device).unsqueeze(1)
        is_fellow = (places >= text) & ((places - text) // self.frames == group)  # (n, seen)
        is_open = (is_text | is_fellow).repeat_interleave(self.frames, dim=1)
        bias = torch.zeros(batch, count * self.frames, seen, dtype=self.dtype, device=self.device)
        return bias.masked_fill_(~is_open, -torch.inf)


class _CtcLayer(BlockBody):
    """The one layer as a model."""

    def through_layer(self, hidden: Tensor, cache: LayerStates, place: Place) -> Tensor:
        """Return hidden states (batch * n, hidden) after the layer."""
        (layer,), (states,) = self._layers, cache.states
        return self.through(layer, hidden, layer.input_norm(hidden), states, place)


def tensor_shapes(target: TargetSizes, shape: BlockShape) -> dict[str, Shape]:
    """Return the shape of every tensor of a CTC drafter, whose layer has the target's heads."""
    hidden, inner = target.hidden, shape.intermediate
    queries, pairs = target.queries, target.pairs
    return {
        "join.weight": (hidden, 2 * hidden),
        "queries.weight": (shape.frames, hidden),
        "blank.weight": (1, hidden),
        "layer.input_layernorm.weight": (hidden,),
        "layer.self_attn.q_proj.weight": (queries, hidden),
        "layer.self_attn.k_proj.weight": (pairs, hidden),
        "layer.self_attn.v_proj.weight": (pairs, hidden),
        "layer.self_attn.o_proj.weight": (hidden, queries),
        "layer.post_attention_layernorm.weight": (hidden,),
        "layer.mlp.gate_proj.weight": (inner, hidden),
        "layer.mlp.up_proj.weight": (inner, hidden),
        "layer.mlp.down_proj.weight": (hidden, inner),
    }


def _anatomy(tensors: Mapping[str, Tensor], target: LeanModel) -> Anatomy:
    """Return the drafter's layer as a whole model, with the turns of the target's first layer."""
    own = target.anatomy
    return replace(
        own,
        embedding_scale=None,
        sights=(Sight(window=None, turns=own.sights[own.layers[0].sight].turns),),
        layers=(named_layer(tensors, "layer.", NORMS, own.final_norm.eps, own.size),),
        attention_cap=None,
        logit_cap=None,
        gallery=None,
    )


LEAST = 1e-30  # chance below which a token is never said


class Frames:
    """The block of a CTC drafter; past the vocabulary is the chance that nothing more is predicted.

    Along a path of frames equal neighbours are merged, then blanks deleted. The chance of a prefix is the sum over all
    paths whose text begins with it. With y(t) the frames' distributions, t = 1 .. F, and for a prefix p with last
    token l

        b(t), n(t) = chance that the first t frames say p and end in a blank, in l
        n'(t) = y_c(t) (phi(t - 1) + n'(t - 1)),   b'(t) = y_blank(t) (b'(t - 1) + n'(t - 1))          of p + c
        phi(t) = b(t) + (0 if c = l else n(t)),    P(p + c ...) = sum over t of y_c(t) phi(t - 1)

    All are stored given p, so that they neither vanish nor need logarithms.

    Source: Graves et al. 2006, Connectionist Temporal Classification, Sec. 3-4; Graves 2012, Alg. 1 (prefix search).
    """

    def __init__(self, said: Tensor) -> None:
        """Take log-probabilities (rows, frames, vocabulary + 1), the blank's last."""
        chances = said.exp()
        self._tokens, self._blank = chances[..., :-1], chances[..., -1]
        rows, frames = self._blank.shape
        start = torch.ones(rows, 1, dtype=chances.dtype, device=chances.device)
        self._rows = torch.arange(rows, device=chances.device)
        self._last = torch.full_like(self._rows, -1)  # token that each node's prefix ends in
        self._in_blank = torch.cat((start, self._blank.cumprod(dim=1)), dim=1)  # (nodes, frames + 1), b
        self._in_token = torch.zeros_like(self._in_blank)  # n
        self._frames = frames

    def root(self) -> Tensor:
        """Return (rows, vocabulary + 1): logits of every row's first token, and of none."""
        return self._logits(torch.arange(len(self._tokens), device=self._rows.device))

    def below(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Return (nodes, vocabulary + 1): logits after new nodes."""
        first, rows = len(self._rows), self._rows[parents]
        said = self._tokens[rows, :, tokens]
        starts = self._starts(parents, tokens)
        in_token, in_blank = [torch.zeros_like(said[:, 0])], [torch.zeros_like(said[:, 0])]
        for t in range(self._frames):
            in_token.append(said[:, t] * (starts[:, t] + in_token[t]))
            in_blank.append(self._blank[rows, t] * (in_blank[t] + in_token[t]))
        chance = (said * starts).sum(dim=1, keepdim=True).clamp(min=LEAST)
        self._rows, self._last = torch.cat((self._rows, rows)), torch.cat((self._last, tokens))
        self._in_token = torch.cat((self._in_token, torch.stack(in_token, dim=1) / chance))
        self._in_blank = torch.cat((self._in_blank, torch.stack(in_blank, dim=1) / chance))
        return self._logits(torch.arange(first, len(self._rows), device=rows.device))

    def _starts(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """Return (nodes, frames): phi(0 .. F - 1) of each node for a token."""
        is_new = (tokens != self._last[nodes]).unsqueeze(1)
        return self._in_blank[nodes, :-1] + self._in_token[nodes, :-1] * is_new

    def _logits(self, nodes: Tensor) -> Tensor:
        """Return (nodes, vocabulary + 1): log-probabilities of every next token given the prefix."""
        rows, last = self._rows[nodes], self._last[nodes]
        starts = self._in_blank[nodes, :-1] + self._in_token[nodes, :-1]
        every = torch.bmm(starts.unsqueeze(1), self._tokens[rows]).squeeze(1)
        again = last.clamp(min=0)  # the last token again needs a blank between
        repeated = (self._starts(nodes, last) * self._tokens[rows, :, again]).sum(dim=1, keepdim=True)
        is_first = (last < 0).unsqueeze(1)
        again = again.unsqueeze(1)
        every = every.scatter(1, again, torch.where(is_first, every.gather(1, again), repeated))
        ended = (self._in_blank[nodes, -1] + self._in_token[nodes, -1]).unsqueeze(1)
        chances = torch.cat((every, ended), dim=1)
        apart = APART * torch.arange(chances.shape[1], dtype=chances.dtype, device=chances.device)
        return torch.where(chances > LEAST, chances.clamp(min=LEAST).log(), torch.full_like(apart, LEAST).log() - apart)
