"""Random exits of tiny targets, and what their formula says, computed by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spectune.runtime.models.drafter_shapes import ExitShape
from spectune.runtime.models.exit import DOWN, NORM, UP, ExitModel
from spectune.runtime.models.lean import LeanModel

Weights = dict[str, Tensor]
WIDTH = 12


def exit_weights(hidden: int, *, seed: int = 0, scale: float = 0.3) -> Weights:
    """Return random tensors of an imitation network, float64."""
    noise = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=noise, dtype=torch.float64)

    return {NORM: 1 + drawn(hidden), UP: drawn(WIDTH, hidden), DOWN: drawn(hidden, WIDTH)}


def tiny_exit(target: LeanModel, weights: Weights, layers: int) -> ExitModel:
    """Return an exit after so many layers."""
    return ExitModel(weights, ExitShape(layers=layers, width=WIDTH, target="t"), target)


def exact_logits(target: Any, weights: Weights, text: Sequence[int], layers: int) -> Tensor:  # Any: of any family
    """Return (n, vocabulary): what the formula says behind every token, from transformers' own hidden states."""
    with torch.no_grad():
        state = target(torch.tensor([list(text)]), output_hidden_states=True).hidden_states[layers][0]
        eps = target.config.rms_norm_eps
        normed = state * torch.rsqrt(state.pow(2).mean(-1, keepdim=True) + eps) * weights[NORM]
        state = state + F.silu(normed @ weights[UP].T) @ weights[DOWN].T
        logits: Tensor = target.lm_head(target.model.norm(state))
        cap = getattr(target.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)
