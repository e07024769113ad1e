"""The key-value cache: allocated once, written in place, its rows counted in tokens.

Every sequence of a batch has one *slot* of `capacity` positions. A forward writes its new tokens behind the committed
ones; `keep` moves the accepted nodes of a tree together, and later forwards overwrite the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np
import torch

from ...errors import RequestError
from ...planner.kernels.arrays import Ints
from ..batch.transfer import sent
from ..kernels.trees import move_rows

SWAPPED_AT_ONCE = 128  # positions, which take memory besides
Kept = tuple[int, int, Sequence[int]]  # (slot, position of node 0, nodes)


class KeyValueCache:
    """Keys and values of all layers for a fixed number of slots.

    Invariant: `states[layer, slot, position]` holds the keys then the values of one token; positions at or behind a
    slot's committed length may hold anything.
    """

    def __init__(self, *, layers: int, slots: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device):
        """Allocate (layers, slots, capacity, width) with width = 2 * key-value heads * head size."""
        self.states = torch.zeros(layers, slots, capacity, width, dtype=dtype, device=device)
        self.layers, self.slots, self.capacity = layers, slots, capacity
        self._moving = [self.states.view(layers, slots * capacity, width)]  # (any, rows, any) each

    def require(self, tokens: int) -> None:
        """Raise RequestError unless a slot can hold that many tokens."""
        if tokens > self.capacity:
            raise RequestError(
                f"a sequence needs room for {tokens} tokens and the cache holds {self.capacity}; "
                "shorten the prompt or raise the capacity"
            )

    def keep(self, kept: Iterable[Kept]) -> None:
        """Move nodes (slot, start, increasing indices) from start + index to start, start + 1, ..., in every layer."""
        source: list[int] = []
        target: list[int] = []
        for slot, start, nodes in kept:
            if nodes[-1] >= len(nodes):  # else all lie right
                base = slot * self.capacity + start
                source += [base + node for node in nodes]
                target += range(base, base + len(nodes))
        if source:
            self._move(np.array([source, target]))

    def keep_paths(self, starts: torch.Tensor, nodes: torch.Tensor) -> None:
        """Do what `keep` does for slots 0 to batch - 1, on the device: `starts` (batch,), `nodes` (batch, any)."""
        batch, count = nodes.shape
        firsts = torch.arange(batch, device=nodes.device) * self.capacity + starts
        places = torch.arange(count, device=nodes.device)
        self.copy_rows((firsts.unsqueeze(1) + nodes).flatten(), (firsts.unsqueeze(1) + places).flatten())

    def _move(self, moves: Ints) -> None:
        """Copy rows (2, any) of all slots' positions: the first over the second, none of which is read later."""
        if self.states.device.type != "cpu":
            self.copy_rows(*sent(moves, self.states.device))
            return
        for rows in self._moving:
            move_rows(rows.view(torch.uint8).numpy(), moves)

    def first(self, layers: int) -> KeyValueCache:
        """Return a view of the first layers, which shares its memory with this cache."""
        shorter = copy(self)
        shorter.states, shorter.layers = self.states[:layers], layers
        shorter._moving = [self._moving[0][:layers], *self._moving[1:]]
        return shorter

    def move_slot(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of one slot over another."""
        self.states[:, target, :tokens] = self.states[:, source, :tokens]

    def swap_slots(self, one: int, other: int, tokens: int) -> None:
        """Exchange the first `tokens` positions of two slots; if it is interrupted, both texts are lost."""
        for rows in self._moving:
            of_slots = rows.view(len(rows), self.slots, self.capacity, rows.shape[-1])
            for start in range(0, tokens, SWAPPED_AT_ONCE):
                first, second = (
                    of_slots[:, slot, start : min(start + SWAPPED_AT_ONCE, tokens)] for slot in (one, other)
                )
                held = first.clone()
                first.copy_(second)
                second.copy_(held)

    def spread(self, slots: int, tokens: int) -> None:
        """Copy the first `tokens` positions of slot 0 over the first `slots` slots."""
        self.states[:, 1:slots, :tokens] = self.states[:, :1, :tokens]

    def take_over(self, smaller: KeyValueCache) -> None:
        """Copy all states of a cache with as many slots and less capacity."""
        self.states[:, :, : smaller.capacity] = smaller.states

    def copy_rows(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy rows (any,) of all slots' positions over as many others, without a read by the host."""
        for rows in self._moving:
            rows.index_copy_(1, target, rows.index_select(1, source))


class FeatureCache(KeyValueCache):
    """Keys, values and features, which always move together.

    Invariant: `features[slot, position]` belongs to the token whose keys lie at that position. `after` is the number of
    the target's layers before each part of a feature; empty for a head's own features.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        capacity: int,
        width: int,
        feature_width: int,
        after: tuple[int, ...] = (),
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate a key-value cache, and features (slots, capacity, feature_width)."""
        super().__init__(layers=layers, slots=slots, capacity=capacity, width=width, dtype=dtype, device=device)
        self.after = after
        self.features = torch.zeros(slots, capacity, feature_width, dtype=dtype, device=device)
        self._flat_features = self.features.view(slots * capacity, feature_width)
        self._moving.append(self._flat_features.unsqueeze(0))

    def write_features(self, rows: torch.Tensor, features: torch.Tensor) -> None:
        """Set the features (n, feature_width) of rows (n,) of slots * capacity."""
        self._flat_features.index_copy_(0, rows, features)

    def write_part(self, rows: torch.Tensor, passed: int, states: torch.Tensor) -> None:
        """Set the part of features in rows (n,) that is the states (n, hidden) after `passed` layers."""
        width = states.shape[1]
        begin = self.after.index(passed) * width
        self._flat_features[:, begin : begin + width].index_copy_(0, rows, states)

    def move_slot(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of one slot over another."""
        super().move_slot(source, target, tokens)
        self.features[target, :tokens] = self.features[source, :tokens]

    def spread(self, slots: int, tokens: int) -> None:
        """Copy the first `tokens` positions of slot 0 over the first `slots` slots."""
        super().spread(slots, tokens)
        self.features[1:slots, :tokens] = self.features[:1, :tokens]

    def take_over(self, smaller: KeyValueCache) -> None:
        """Copy everything from a cache of the same kind with as many slots and less capacity."""
        assert isinstance(smaller, FeatureCache)
        super().take_over(smaller)
        self.features[:, : smaller.capacity] = smaller.features
