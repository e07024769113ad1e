"""The key-value cache: allocated once, written in place, its rows counted in tokens.

Every sequence of a batch owns one *slot* of `capacity` positions. A forward writes its new
tokens behind the committed ones; `keep` moves the accepted nodes of a tree together, and what
is not kept is simply written over next time.
"""

from __future__ import annotations

from copy import copy

import torch

from ..errors import RequestError


class KeyValueCache:
    """Keys and values of all layers for a fixed number of slots.

    Invariant: `states[layer, slot, position]` holds the keys then the values of one token, and
    positions at or behind a slot's committed length may hold anything.
    """

    def __init__(self, *, layers: int, slots: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device):
        """Allocate (layers, slots, capacity, width) with width = 2 * key-value heads * head size."""
        self.states = torch.zeros(layers, slots, capacity, width, dtype=dtype, device=device)
        self.layers, self.slots, self.capacity = layers, slots, capacity
        self._flat = self.states.view(layers, slots * capacity, width)

    def require(self, tokens: int) -> None:
        """Raise RequestError unless a slot can hold that many tokens."""
        if tokens > self.capacity:
            raise RequestError(
                f"a sequence needs room for {tokens} tokens and the cache holds {self.capacity}; "
                "shorten the prompt or raise the capacity"
            )

    def keep(self, slot: int, start: int, nodes: list[int]) -> None:
        """Move the tokens written at start + nodes to start, start + 1, ... in every layer.

        Args:
            slot: the sequence.
            start: position of node 0.
            nodes: increasing node indices, each at least its own place in the list.
        """
        first = next((place for place, node in enumerate(nodes) if node != place), len(nodes))
        moved = nodes[first:]
        if not moved:
            return
        base = slot * self.capacity + start
        source = torch.tensor([base + node for node in moved], device=self.states.device)
        self._gather(source, base + first)

    def first(self, layers: int) -> KeyValueCache:
        """Return the cache of the first layers alone; what is written in one is in the other."""
        shorter = copy(self)
        shorter.states, shorter.layers = self.states[:layers], layers
        shorter._flat = self._flat[:layers]
        return shorter

    def move_slot(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of one slot over another."""
        self.states[:, target, :tokens] = self.states[:, source, :tokens]

    def spread(self, slots: int, tokens: int) -> None:
        """Copy the first `tokens` positions of slot 0 over the first `slots` slots."""
        self.states[:, 1:slots, :tokens] = self.states[:, :1, :tokens]

    def take_over(self, smaller: KeyValueCache) -> None:
        """Copy everything from a cache with as many slots and less capacity."""
        self.states[:, :, : smaller.capacity] = smaller.states

    def _gather(self, source: torch.Tensor, start: int) -> None:
        """Copy rows (any,) of all slots' positions to the rows from `start` on."""
        self._flat[:, start : start + len(source)] = self._flat.index_select(1, source)
