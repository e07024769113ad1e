"""Drafters with one forward a round; among them blocks, whose forward answers every node, for every policy.

A recording and a decoder use the same block, so a replay draws the trees that decoding drew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import turned
from .drafter_shapes import BlockShape
from .forward import ForwardInput
from .kv_cache import KeyValueCache
from .lean import LeanModel, features_along, taken
from .places import LayerStates, Place
from .projection import Projection
from .stored_tensors import Shape, as_numbers, held_tensors, require_tensors
from .target_sizes import TargetSizes, sizes_of

APART = 1e-4  # between the logits of neighbouring ids where nothing is known, so that lower ids come first, always


class Block(Protocol):
    """What one forward predicts after texts, the rows. Nodes are numbered: rows first, then in order of the calls."""

    def root(self) -> Tensor:
        """Return (rows, scores): logits of each row's next token; a score past the vocabulary means no more text."""

    def below(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Return (nodes, scores): logits after new nodes, of `tokens` (nodes,); parents are rows or earlier nodes."""


class RoundHead(ABC):
    """A drafter beside its target with one forward a round, over what was committed since the last one.

    For surfaces and caches it is a causal language model. `reads` counts the target's layers before each state read.
    """

    gallery = None

    def __init__(self, target: LeanModel, reads: tuple[int, ...]) -> None:
        """Take a target's number format and device; ModelError where it has fewer layers than are read."""
        target.require_layers(reads)
        self.regime, self.attention = "eager", "sdpa"
        self.dtype, self.device = target.dtype, target.device
        self.vocabulary, self.longest_context = target.vocabulary, target.longest_context
        self.reads = reads
        self._target = target

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens; of no layers here."""
        return KeyValueCache(layers=0, slots=slots, capacity=capacity, width=1, dtype=self.dtype, device=self.device)

    def keep(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> None:
        """Write committed tokens to the cache; here nothing.

        `features` (batch, n, len(reads) * hidden) are the target's at the token before each, before any final norm.
        """
        return

    @abstractmethod
    def next_logits(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Take tokens in; return (rows, vocabulary), logits of the next token after those of `take` or all."""

    @abstractmethod
    def round(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Take tokens in and run the round's other forwards after those of `take`; return their result."""

    def along(self, text: Sequence[int]) -> Tensor:
        """Return (n, len(reads) * hidden): the features that `keep` takes with each token of a text."""
        return features_along(self._target, self.reads, text)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Run a round's reading and drafting on meaningless features: for timing alone."""
        batch, count = step.tokens.shape
        features = torch.ones(batch, count, len(self.reads) * self._target.hidden, dtype=self.dtype, device=self.device)
        last = torch.full((batch,), count - 1, dtype=torch.int64, device=self.device)
        return self.round(features, replace(step, take=last), cache)


class BlockBody(LeanModel):
    """The layers of a block drafter as a model whose tokens may also be cached without a look at the text."""

    def remember(self, joined: Tensor, cache: LayerStates, place: Place) -> None:
        """Write the first layer's keys and values of tokens (batch * n, width)."""
        states, layer = next(iter(cache.states)), self._layers[0]
        _, pair = turned(self.anatomy, layer, layer.qkv(layer.input_norm(joined)), place.views[0])
        states.view(-1, self._width).index_copy_(0, place.rows, pair)


class BlockHead(RoundHead):
    """A block drafter: its one forward answers any tree of the round. `depth` tokens were trained."""

    def __init__(self, target: LeanModel, reads: tuple[int, ...], depth: int) -> None:
        super().__init__(target, reads)
        self.depth = depth

    @abstractmethod
    def say(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return (rows, places, scores): predictions after committed tokens, those of `take` or all, row by row."""

    @abstractmethod
    def block(self, said: Tensor) -> Block:
        """Return the block of what `say` returned."""

    def next_logits(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Take tokens in; return (rows, vocabulary), logits of the next token after those of `take` or all."""
        return self.block(self.round(features, step, cache)).root()[:, : self.vocabulary]

    def round(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Take tokens in; return the predictions after those of `take`."""
        self.keep(features, step, cache)
        return self.say(features, step, cache)


class Levels:
    """A block whose places are depths: the children of a node do not depend on its path.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, Sec. 2.1.2 (the Cartesian product of the heads' candidates).
    """

    def __init__(self, said: Tensor) -> None:
        """Take logits (rows, places, vocabulary)."""
        self._said = said
        self._rows = torch.arange(len(said), device=said.device)
        self._depths = torch.zeros(len(said), dtype=torch.int64, device=said.device)

    def level(self, depth: int) -> Tensor:
        """Return (rows, vocabulary): logits at a depth, the root's children at 0; nearly alike after the last place."""
        return self._said[:, depth] if depth < self._said.shape[1] else self._unknown().expand(len(self._said), -1)

    def root(self) -> Tensor:
        """Return (rows, vocabulary): logits of the next token of every row."""
        return self.level(0)

    def below(self, parents: Tensor, tokens: Tensor) -> Tensor:
        """Return (nodes, vocabulary): logits after new nodes."""
        rows, depths = self._rows[parents], self._depths[parents] + 1
        self._rows, self._depths = torch.cat((self._rows, rows)), torch.cat((self._depths, depths))
        places = self._said.shape[1]
        known = self._said[rows, depths.clamp(max=places - 1)]
        return torch.where((depths < places).unsqueeze(1), known, self._unknown())

    def _unknown(self) -> Tensor:
        return -APART * torch.arange(self._said.shape[2], dtype=self._said.dtype, device=self._said.device)


def wanted_rows(step: ForwardInput, numbers: Tensor) -> Tensor:
    """Return (rows, any): of numbers (batch, n, any) those of the tokens that `take` wants, or of all."""
    return taken(step, numbers.flatten(0, 1))


class MedusaHeads(BlockHead):
    """All heads of a target, run together.

    The target's head has predicted the very next token, which is committed. So head 0 predicts the newest
    token's children, and head 1 what follows these, whatever they are.

        logits_i = lm_head(x + U_i SiLU(W_i x + b_i)),     x = final_norm(hidden state of the token before the newest)

    Published heads have a language-model head each, hidden x vocabulary. Here all share the target's, and
    U_i replaces it: SiLU alone can subtract next to nothing from x.

    Source: Cai et al. 2024, arXiv:2401.10774, Sec. 2.1.1.
    """

    def __init__(self, weights: Mapping[str, Tensor], shape: BlockShape, target: LeanModel) -> None:
        """Take tensors by the names in `tensor_shapes`; ModelError where they do not fit these and the target."""
        super().__init__(target, shape.reads, shape.depth)
        wanted = tensor_shapes(sizes_of(target.anatomy), shape)
        require_tensors("the Medusa drafter", held_tensors(weights), wanted)
        like = target.anatomy.embedding
        entering, bias, leaving = (as_numbers(weights[name], like) for name in wanted)
        self._heads, self._outs = Projection(entering, bias), leaving.transpose(1, 2).contiguous()

    @torch.inference_mode()
    def say(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return (rows, heads, vocabulary): logits of every head after the wanted tokens."""
        x = self._target.final_norm(wanted_rows(step, features))
        inner = F.silu(self._heads(x)).view(len(x), self.depth, -1).transpose(0, 1)
        each = torch.bmm(inner, self._outs).transpose(0, 1) + x.unsqueeze(1)
        return self._target.logits(each.flatten(0, 1)).view(len(x), self.depth, -1)

    def block(self, said: Tensor) -> Levels:
        """Return the block of what `say` returned: one level per head."""
        return Levels(said)


def tensor_shapes(target: TargetSizes, shape: BlockShape) -> dict[str, Shape]:
    """Return the shape of every tensor of Medusa's heads."""
    hidden = target.hidden
    return {
        "heads.weight": (shape.depth * hidden, hidden),
        "heads.bias": (shape.depth * hidden,),
        "outs.weight": (shape.depth, hidden, hidden),
    }
