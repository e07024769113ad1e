"""The imitation network behind an exit as torch trains it, and its losses.

  own   = h[E] + U SiLU(W norm(h[E]))                                  replaces the deep layers
  deep  = sum over l of share[l] h[l],   l the last three layers       what it imitates; the shares are learned
  loss  = (1 - cos(own, deep)) + tau^2 KL(p^tau || q^tau) + CE(q, x)

p is the target's distribution and q the exit's, of the token x behind each place; tau is 2.

Source: Bajpai, Hanawal 2025, arXiv:2510.22641, names these three losses and the fusion of the last layers; weights, tau
and the network's form are not public and are this package's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..runtime.models.exit import DOWN, NORM, UP

DEEP = 3  # last hidden states that are fused
TAU = 2.0  # temperature at which distributions are compared


class ImitationModule(nn.Module):
    """The trained network; it begins as zero, so that the exit starts as the target's own head on its state."""

    def __init__(self, hidden: int, width: int, *, deep: int, eps: float) -> None:
        """Begin with zero output and equal shares of `deep` hidden states; `hidden` and `width` are sizes."""
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.up, self.down = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)
        nn.init.zeros_(self.down.weight)
        self.shares = nn.Parameter(torch.zeros(deep))  # of training alone

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (..., hidden) for hidden states behind the exit (..., hidden)."""
        own: Tensor = hidden + self.down(F.silu(self.up(self.norm(hidden))))
        return own

    def fused(self, deep: Tensor) -> Tensor:
        """Return (..., hidden): the sum of hidden states (deep, ..., hidden), weighted by shares."""
        joined: Tensor = torch.tensordot(self.shares.softmax(-1), deep.float(), dims=1)
        return joined

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for the runtime."""
        return {NORM: self.norm.weight, UP: self.up.weight, DOWN: self.down.weight}


def imitation_loss(own: Tensor, deep: Tensor, logits: Tensor, target_logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the sum of the three losses of the module's docstring, each a mean over places."""
    far = 1.0 - F.cosine_similarity(own.float(), deep.float(), dim=-1)
    said, known = ((each.float() / TAU).log_softmax(-1) for each in (logits, target_logits))
    apart = (known.exp() * (known - said)).sum(-1)
    nats = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())
    return far.mean() + TAU**2 * apart.mean() + nats
