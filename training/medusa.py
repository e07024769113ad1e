"""Medusa heads as torch trains them, and their published loss; see `block`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .frozen import FrozenTarget

DISCOUNT = 0.8  # of the losses, per head


class MedusaModule(nn.Module):
    """One residual block per head, initially the target's own head. See `runtime.models.medusa`.

    Source: Cai et al. 2024, Medusa, arXiv:2401.10774, Sec. 2.1.1.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(heads)])
        outs = [nn.Linear(hidden, hidden, bias=False) for _ in range(heads)]
        for out in outs:
            nn.init.zeros_(out.weight)
        self.outs = nn.ModuleList(outs)

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., heads, hidden) for final-normed states (..., hidden)."""
        pairs = zip(self.heads, self.outs, strict=True)
        return torch.stack([states + out(F.silu(head(states))) for head, out in pairs], dim=-2)

    def said(self, target: FrozenTarget, ids: Tensor, states: Tensor, anchors: Tensor) -> Tensor:
        """Return logits (batch * anchors, heads, vocabulary) at anchors (batch, anchors) of texts' states."""
        picked = states.gather(1, anchors.unsqueeze(2).expand(-1, -1, states.shape[2]))
        return target.said(self(picked.flatten(0, 1)))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for the runtime, all heads concatenated."""
        weights, biases = ([getattr(head, name) for head in self.heads] for name in ("weight", "bias"))
        outs = torch.stack([next(out.parameters()) for out in self.outs])
        return {"heads.weight": torch.cat(weights), "heads.bias": torch.cat(biases), "outs.weight": outs}


def medusa_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean of the heads' cross-entropies, head k weighing 0.8^k.

    `logits` is (anchors, heads, vocabulary); `wanted` (anchors, heads), the tokens from two places behind each anchor.

    Source: Cai et al. 2024, arXiv:2401.10774, Eq. 1.
    """
    weights = DISCOUNT ** torch.arange(wanted.shape[1], device=wanted.device)
    nats = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none").view(wanted.shape)
    return (nats.mean(dim=0) * weights).sum() / weights.sum()
