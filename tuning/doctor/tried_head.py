"""A head that is fed otherwise than its files say: other layers, another token's states, other norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from ...runtime.models.eagle import EagleHead
from ...runtime.models.eagle_shape import HeadShape
from ...runtime.models.lean import LeanModel, features_along
from ...runtime.models.whole_head import WholeHead


class TextStates:
    """The states after every layer of a target along texts, each of which it reads once."""

    def __init__(self, target: LeanModel) -> None:
        self.layers = len(target.anatomy.layers)
        self._target = target
        self._known: dict[tuple[int, ...], Tensor] = {}

    def along(self, text: Sequence[int]) -> Tensor:
        """Return (n + 1, layers + 1, hidden): the states of the token before each token, and of the last one."""
        key = tuple(text)
        if key not in self._known:
            found = features_along(self._target, range(self.layers + 1), [*text, 0])
            self._known[key] = found.view(len(text) + 1, self.layers + 1, -1)
        return self._known[key]


class TriedHead(EagleHead):
    """A head over known states of the target."""

    def __init__(self, weights: Mapping[str, Tensor], shape: HeadShape, target: LeanModel, states: TextStates) -> None:
        super().__init__(weights, shape, target)
        self._states, self._lag, self._other_norm = states, 0, False

    def fed(self, *, reads: Sequence[int] = (), lag: int = 0, other_norm: bool = False) -> TriedHead:
        """Return the same head fed otherwise.

        Args:
            reads: layers passed by each state; as they are where empty.
            lag: how many tokens earlier each state is taken.
            other_norm: whether the target's final norm is applied where it is not, or left out.
        """
        other = copy(self)
        other.reads = tuple(reads) or self.reads
        other._lag, other._other_norm = lag, other_norm
        return other

    def along(self, text: Sequence[int]) -> Tensor:
        """Return (n, len(reads) * hidden), the states that are fed with each token."""
        states = self._states.along(text)
        rows = (torch.arange(len(text), device=states.device) - self._lag).clamp(min=0)
        return states[rows][:, list(self.reads)].flatten(1)

    def featured(self, states: Tensor) -> Tensor:
        """Return features (rows, hidden) of states (rows, len(reads) * hidden)."""
        if not self._other_norm:
            return super().featured(states)
        if self._form == "eagle":
            return states
        parts = states.view(len(states), len(self.reads), -1)
        return self._joins(self._target.final_norm(parts.contiguous()).flatten(1))

    def _whole_forward(self) -> WholeHead | None:
        return None  # it would join the states itself
