"""One forward of a causal language model over new tokens of several sequences."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ...planner.kernels.arrays import Bools, Floats32, Ints
from .kv_cache import KeyValueCache

if TYPE_CHECKING:
    from .image_cache import ImageCache

WORD = 64  # bits of a tree mask's words
ALL: Ints = np.empty(0, dtype=np.int64)  # tokens of each row are wanted
NO_NODES: Bools = np.empty((0, 0, 0), dtype=np.bool_)  # in sight of a text's own tokens
TREE_ATTENTION = "tree"  # the attention kernel that reads a `TreeMask`


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMask:
    """What new tokens see by the tree they are in: the whole text before it, and their ancestors.

    Token j of row b sees the cache positions before `starts[b]`, and position starts[b] + c where bit c % 64 of bits[b,
    j, c // 64] is set. So the mask is as small as the tree, however long the text is.
    """

    starts: Tensor  # (batch,) int64, committed tokens of each row
    bits: Tensor  # (batch, n, words) int64

    def bias(self, seen: int, dtype: torch.dtype) -> Tensor:
        """Return the mask over cache positions, (batch, n, seen): 0 where a token sees, -inf elsewhere."""
        count, words = self.bits.shape[1:]
        places = torch.arange(seen, device=self.starts.device) - self.starts.unsqueeze(1)  # (batch, seen)
        among = places.clamp(min=0, max=words * WORD - 1)
        word = self.bits.gather(2, (among // WORD).unsqueeze(1).expand(-1, count, -1))
        is_ancestor = ((word >> (among % WORD).unsqueeze(1)) & 1).bool() & (places < words * WORD).unsqueeze(1)
        is_open = (places < 0).unsqueeze(1) | is_ancestor
        return torch.zeros(is_open.shape, dtype=dtype, device=is_open.device).masked_fill_(~is_open, -torch.inf)


@dataclass(slots=True, kw_only=True)
class ForwardInput:
    """New tokens for `batch` neighbouring slots from `first_slot` on. Read-only; frozen fields take longer to set.

    Token j of row b is written at cache position `columns[b, j]` and sees the positions that `bias` or `tree` opens.

    Invariant: a token sees its text, one cached token for every place up to its place; further right in the cache is
    further on in the text. So a token that sees everything is the only new one of its row. Padding, whose output is not
    read, may see anything, but not nothing.
    """

    tokens: Tensor  # (batch, n) int64
    positions: Tensor  # (batch, n) int64, place in the text: context + depth
    columns: Tensor  # (batch, n) int64, place in the cache
    bias: Tensor | None  # (batch, n, seen) 0 or -inf, model dtype; None: every token sees everything, or what tree says
    seen: int  # cache positions in sight, new tokens included; with a tree perhaps more than anybody sees
    take: Tensor | None = None  # (batch,) the only token of each row whose output is wanted
    first_slot: int = 0
    tree: TreeMask | None = None  # a captured forward's: its tensors may still lie on the host
    packed: Tensor | None = None  # (any,) int64 on the host that all tensors are views of, in `packed_input`'s order

    @property
    def signature(self) -> tuple[int, ...]:
        """What must be equal for a forward captured or compiled once to serve another input too."""
        batch, count = self.tokens.shape
        words = 0 if self.tree is None else self.tree.bits.shape[2]
        return batch, count, self.seen, self.first_slot, self.bias is None, self.take is None, words


class Draws(NamedTuple):
    """How tokens are drawn after trees, as kernels take it; the text does not matter."""

    places: Ints  # (batch, 3): a seed; the place in the text of the token behind the root; top-k, 0 for all
    settings: Floats32  # (batch, 3): temperature, 0 where the best token is drawn; 1 less top-p; min-p


@dataclass(slots=True, kw_only=True)
class UnlaidNodes:
    """A drafter's new tokens for `FindsChildren`: the texts' next ones, or drafted nodes of one depth; read-only."""

    tokens: Ints  # (batch, n)
    contexts: Ints  # (batch,), committed tokens in the cache
    depth: int  # of drafted nodes, the first layer behind the newest committed token being 0
    visible: Bools  # (batch, n, nodes), which of the nodes behind the context each sees; `NO_NODES` of texts
    wanted: Ints  # (batch,), the only token of each row behind which children are; or `ALL`
    seen: int  # cache positions in sight, new tokens included
    draws: Draws | None = None  # how the target draws at these places; None where it takes the best


@dataclass(slots=True, kw_only=True)
class UnlaidBeam:
    """A draft for `FindsChildren`, read-only: a beam's best nodes form the trees (`planner.strategies.eagle2`)."""

    tokens: Ints  # (batch, n), the texts' own next tokens
    wanted: Ints  # (batch,), the last of each row
    contexts: Ints  # (2, batch), committed tokens in the cache, before these are read and behind that
    depth: int  # forwards behind the one that reads these
    top_k: int  # nodes that each of them is fed, and children of every node; at most the vocabulary
    drafts: int  # nodes of each tree beside its root, at most all that the beam sees
    seen: int  # cache positions in sight at the most, new tokens included
    draws: Draws | None = None  # as `UnlaidNodes` has it


@runtime_checkable
class FindsChildren(Protocol):
    """What may answer a drafter by one call with the likeliest children of new tokens, as heads do."""

    def found(self, nodes: UnlaidNodes, count: int, cache: KeyValueCache) -> tuple[Ints, Floats32, bool] | None:
        """Forward nodes of the first slots; return their likeliest children, by `draft_scores`."""

    def grown(self, beam: UnlaidBeam, cache: KeyValueCache) -> tuple[Ints, bool] | None:
        """Read the next tokens of the texts in the first slots, and grow a beam after them; None as for `found`.

        Return trees (3, batch, drafts + 1) as in `DraftBatch`, and whether scores are numbers (else the trees are
        void).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftStates:
    """Hidden states from an earlier run of a model's first layers; the cache already holds these layers' part."""

    owner: CausalModel  # whose layers they are
    layers: int  # that the states have passed
    states: Tensor  # (slots, tokens, hidden), of as many tokens as a forward reads or more

    def rows(self, step: ForwardInput) -> Tensor:
        """Return (batch * n, hidden): the states of a forward's tokens, from slot 0 on."""
        batch, count = step.tokens.shape
        return self.states[:batch, :count].reshape(batch * count, -1)


def packed_input(
    packed: Tensor, batch: int, count: int, words: int, *, seen: int, first_slot: int, takes: bool
) -> ForwardInput:
    """Return the input whose tensors lie one after the other: tokens, positions, columns, starts, bits, take.

    `packed` is int64 of `packed_size`; `count` and `words` are per row and per token.
    """
    cells, shape = batch * count, (batch, count)
    ends = [0, *accumulate([cells, cells, cells, batch, cells * words, batch if takes else 0])]
    tokens, positions, columns, starts, bits, take = (packed[start:end] for start, end in pairwise(ends))
    return ForwardInput(
        tokens=tokens.view(shape),
        positions=positions.view(shape),
        columns=columns.view(shape),
        bias=None,
        seen=seen,
        take=take if takes else None,
        first_slot=first_slot,
        tree=TreeMask(starts=starts, bits=bits.view(batch, count, words)),
        packed=packed,
    )


def packed_size(batch: int, count: int, words: int, *, takes: bool) -> int:
    """Return how many numbers a packed input has."""
    return batch * count * (3 + words) + batch * (2 if takes else 1)


@runtime_checkable
class Resuming(Protocol):
    """A causal language model whose forward can continue from the states after its first layers."""

    def can_resume(self, left: LeftStates) -> bool:
        """Return whether it can continue: the layers are its own, and it has more."""

    def resume(self, step: ForwardInput, cache: KeyValueCache, left: LeftStates) -> Tensor:
        """Do what `forward` does by the later layers alone; their part of the cache is written."""


class CausalModel(Protocol):
    """A causal language model that reads and writes an explicit cache."""

    dtype: torch.dtype
    device: torch.device
    vocabulary: int
    longest_context: int
    regime: str  # how forwards run: "eager", ...; see profiler.records.role
    attention: str  # the attention kernel, e.g. "sdpa"

    @property
    def gallery(self) -> ImageCache | None:
        """Its images, in whatever regime it runs; None where it has no vision."""

    def new_cache(self, slots: int, capacity: int) -> KeyValueCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""

    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits (batch, n, vocabulary), or (batch, 1, vocabulary) with `take`; writes the cache."""
