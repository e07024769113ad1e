"""A target's first layers as drafter; after them a small network imitates the deep layers.

    drafted logits = lm_head(final_norm(h + U SiLU(W norm(h)))),     h = hidden state after the first E layers

Only norm, W and U are the drafter's; all else is the target's.

Source: Bajpai, Hanawal 2025, arXiv:2510.22641 (layers and an imitation network); Elhoushi et al. 2024, LayerSkip,
arXiv:2404.16710 (layers alone); Liu et al. 2024, Kangaroo, arXiv:2404.18911 (layers and one of attention). The first
paper does not publish its network; this form is this package's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import ModelError
from .drafter_shapes import ExitShape
from .forward import ForwardInput
from .kv_cache import FeatureCache, KeyValueCache
from .lean import LeanModel, taken
from .norm import Norm
from .places import rows_of
from .projection import Projection
from .stored_tensors import Shape, as_numbers, held_tensors, require_tensors
from .target_sizes import TargetSizes, sizes_of

NORM, UP, DOWN = (f"imitation.{name}.weight" for name in ("norm", "up", "down"))


class ExitModel(LeanModel):
    """The first layers of a target and an imitation network, as a causal language model; it shares all weights."""

    def __init__(self, weights: Mapping[str, Tensor], shape: ExitShape, target: LeanModel) -> None:
        """Take tensors (hidden,), (width, hidden), (hidden, width); ModelError where they or the target do not fit."""
        sizes = sizes_of(target.anatomy)
        require_exit_layer(shape, sizes)
        super().__init__(replace(target.anatomy, layers=target.anatomy.layers[: shape.layers]))
        self.target = target
        wanted = tensor_shapes(sizes, shape)
        require_tensors("the exit drafter", held_tensors(weights), wanted)
        own = {name: as_numbers(weights[name], self.anatomy.embedding) for name in wanted}
        self._norm = Norm(weight=own[NORM], eps=target.anatomy.final_norm.eps)
        self._up, self._down = Projection(own[UP]), Projection(own[DOWN])

    @property
    def exit_layer(self) -> int:
        """How many layers of the target it runs."""
        return len(self.anatomy.layers)

    @torch.inference_mode()
    def forward_leaving(self, step: ForwardInput, cache: KeyValueCache, left: Tensor) -> Tensor:
        """Do what `forward` does, and write the states after the last layer into `left`, (batch * n, hidden)."""
        return self.answer(step, self._read(step, cache, left))

    @torch.inference_mode()
    def leave(self, step: ForwardInput, cache: KeyValueCache, left: Tensor) -> None:
        """Read tokens for their states alone: write them into `left`, (batch * n, hidden)."""
        self._read(step, cache, left)

    def _read(self, step: ForwardInput, cache: KeyValueCache, left: Tensor) -> Tensor:
        """Return the last layer's states, written into `left`; write the target's cached features up to there."""
        for count, latest in enumerate(self.stream(step, cache)):
            hidden = latest
            if isinstance(cache, FeatureCache) and count in cache.after:
                cache.write_part(rows_of(step, cache), count, hidden)
        left.copy_(hidden)
        return hidden

    def answer(self, step: ForwardInput, hidden: Tensor) -> Tensor:
        """Return the logits of a forward with hidden states (batch * n, hidden) after the last layer."""
        left = self.imitated(taken(step, hidden))
        return self.normed_logits(left).view(len(step.tokens), -1, self.vocabulary)

    def imitated(self, hidden: Tensor) -> Tensor:
        """Return (rows, hidden): the imitation of the target's last hidden states, before the final norm."""
        return self._down.added_to(hidden, F.silu(self._up(self._norm(hidden))))


def tensor_shapes(target: TargetSizes, shape: ExitShape) -> dict[str, Shape]:
    """Return the shape of every tensor of an imitation network."""
    return {NORM: (target.hidden,), UP: (shape.width, target.hidden), DOWN: (target.hidden, shape.width)}


def require_exit_layer(shape: ExitShape, target: TargetSizes) -> None:
    """Raise ModelError where a target ends before the exit."""
    if shape.layers >= target.layers:
        raise ModelError(
            f"the drafter leaves its target after layer {shape.layers} and this target has {target.layers}; an exit "
            "lies before the last layer, give the drafter of this target"
        )
