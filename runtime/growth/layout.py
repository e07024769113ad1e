"""Lay the layers of a growing tree out for forwards, on the device: `models.layout` for nodes the host cannot see."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...planner.strategies import TreePolicy
from ..batch.transfer import sent
from ..models.forward import WORD, ForwardInput, TreeMask
from ..models.kv_cache import KeyValueCache


class LayerLayout:
    """Places the nodes of one round's trees behind the committed text, layer by layer.

    Every node has its own cache column. In a *compact* layout the nodes of a row are adjacent whatever the layers'
    widths, and empty slots share one column that no node sees. So trees of which only a few layers are wide need no
    more columns than a tree has nodes.
    """

    def __init__(
        self,
        contexts: Many[int],
        cache: KeyValueCache,
        *,
        dtype: torch.dtype,  # of the mask, the model's
        device: torch.device,
        compact: int | None = None,  # most nodes of any row that are fed, for a compact layout
        seen_in: Callable[[int], int] | None = None,
        placed: Tensor | None = None,  # the contexts (batch, 1) where the device has them already
        known: dict[int, tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        """Start behind `contexts` (batch,) committed tokens in the drafter's cache.

        Args:
            seen_in: of captured forwards, maps needed cache positions to those in sight; then a tree says what tokens
                see. None: exactly the needed ones, and a mask.
            known: places behind the context and tree masks by layer, reused for trees of the same shape where no parent
                hangs on scores; missing ones are added.
        """
        self._contexts = sent(np.array(contexts, dtype=np.int64)[:, None], device) if placed is None else placed
        self._rows = torch.arange(len(contexts), device=device).unsqueeze(1)
        self._longest, self._are_level = max(contexts), len(set(contexts)) == 1
        self._cache, self._dtype, self._compact = cache, dtype, compact
        self._seen_in, self._known = seen_in, known
        self._depth = self._columns = 0
        self._fed = torch.zeros_like(self._contexts)  # nodes of each row in the cache
        self._visible = torch.zeros(len(contexts), 1, 0, dtype=torch.bool, device=device)

    def layer(self, tokens: Tensor, parents: Tensor) -> ForwardInput:
        """Return the forward's input for the next layer of `tokens` (batch, width).

        `parents` (batch, width) are slots in the layer before, -1 for no node; the first layer's are 0. RequestError if
        the cache has no room.
        """
        width, before = tokens.shape[1], self._columns
        self._columns = before + width if self._compact is None else min(before + width, self._compact)
        spare = 0 if self._compact is None else 1
        self._cache.require(self._longest + self._columns + spare)
        ends = self._longest + self._columns
        offsets, mask = self._sight(parents, before, ends)
        is_tree = self._seen_in is not None
        step = ForwardInput(
            tokens=tokens,
            positions=(self._contexts + self._depth).expand(-1, width),
            columns=self._contexts + offsets,
            bias=None if is_tree else mask,
            seen=ends if self._seen_in is None else self._seen_in(ends),
            tree=TreeMask(starts=self._contexts.squeeze(1), bits=mask) if is_tree and mask is not None else None,
        )
        self._depth += 1
        return step

    def _sight(self, parents: Tensor, before: int, ends: int) -> tuple[Tensor, Tensor | None]:
        """Return where each node goes behind its row's context, and what it sees: a tree's bits or a bias."""
        if self._known is not None and self._depth in self._known:
            return self._known[self._depth]
        offsets = self._offsets(parents, before)
        own = offsets.unsqueeze(2) == torch.arange(self._columns, device=parents.device)
        above = self._visible[self._rows, parents.clamp(min=0)]
        self._visible = F.pad(above, (0, self._columns - before)) | own
        if self._seen_in is None:
            return offsets, None if self._sees_all() else self._bias(ends)
        bits = tree_bits(self._visible)
        if self._known is not None:
            self._known[self._depth] = offsets, bits
        return offsets, bits

    def _offsets(self, parents: Tensor, before: int) -> Tensor:
        """Return (batch, width): place of each node behind its row's context."""
        if self._compact is None:
            return torch.arange(before, self._columns, device=parents.device).expand_as(parents)
        is_node = parents >= 0
        offsets = self._fed + is_node.cumsum(dim=1) - 1
        self._fed = self._fed + is_node.sum(dim=1, keepdim=True)
        return offsets.masked_fill(~is_node, self._columns)

    def _sees_all(self) -> bool:
        """Whether every node sees all that lies before it: rows of one length, and layers of one node so far."""
        return self._are_level and self._compact is None and self._columns == self._depth + 1

    def _bias(self, seen: int) -> Tensor:
        """Return (batch, width, seen): 0 on the context and the visible nodes, -inf elsewhere."""
        places = torch.arange(seen, device=self._contexts.device) - self._contexts.unsqueeze(2)  # behind the context
        width = self._visible.shape[1]
        among = places.clamp(min=0, max=self._columns - 1).expand(-1, width, -1)
        is_open = (places < 0) | (self._visible.gather(2, among) & (places < self._columns))
        bias = torch.zeros(is_open.shape, dtype=self._dtype, device=is_open.device)
        return bias.masked_fill_(~is_open, -torch.inf)


def columns_of(policy: TreePolicy) -> int:
    """Return the most cache columns that a policy's trees take behind the text, all of their layers drafted."""
    compact = policy.compact_nodes
    return policy.draft_room() if compact is None else min(policy.draft_room(), compact) + 1


def tree_bits(visible: Tensor) -> Tensor:
    """Return (batch, n, words), a `TreeMask`'s bits of which nodes each sees, from (batch, n, nodes)."""
    batch, count, columns = visible.shape
    words = -(-columns // WORD)
    spread = F.pad(visible, (0, words * WORD - columns)).view(batch, count, words, WORD)
    bits: Tensor = spread.long() << torch.arange(WORD, device=spread.device)
    return bits.sum(dim=-1).contiguous()
