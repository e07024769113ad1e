"""Medusa heads: head i predicts the token i + 2 places after a hidden state, from that hidden state alone.

The target's head has predicted the very next token, which is committed. So head 0 predicts the children of the newest
token, and head 1 what follows these, whatever they are.

    logits_i = lm_head(x + U_i SiLU(W_i x + b_i)),     x = final_norm(hidden state of the token before the newest)

Published heads have a language-model head each, hidden x vocabulary. Here all share the target's, and U_i replaces it:
SiLU alone can subtract next to nothing from x.

Source: Cai et al. 2024, arXiv:2401.10774, Sec. 2.1.1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cache import KeyValueCache
from .block import BlockHead, Levels, wanted_rows
from .block_shape import BlockShape
from .forward import ForwardInput
from .lean import LeanModel
from .projection import Projection
from .stored_tensors import Shape, as_numbers, held_tensors, require_tensors
from .target_sizes import TargetSizes, sizes_of


class MedusaHeads(BlockHead):
    """All heads of a target, run together."""

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
