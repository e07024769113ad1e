"""A key-value cache that also holds a hidden state per token, from which heads draft."""

from __future__ import annotations

import torch

from .cache import KeyValueCache


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
