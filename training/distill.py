"""Distil drafters on a frozen target: match its next-token distribution on its own text and on the corpus.

Source: knowledge distillation for drafters, Zhou et al. 2023, arXiv:2310.08461 (DistillSpec), forward KL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from .language_model import train
from .settings import TrainingSettings

Tokens = NDArray[np.uint16]


def distil(
    drafters: Mapping[str, PreTrainedModel], target: PreTrainedModel, tokens: Tokens, settings: TrainingSettings
) -> Iterator[float]:
    """Train drafters with the target's vocabulary in place, with one target forward a step; yield each summed loss."""
    family = torch.nn.ModuleDict(dict(drafters))
    return train(family, lambda batch: _divergence(drafters, target, batch[:, :-1]), tokens, settings)


def _divergence(drafters: Mapping[str, PreTrainedModel], target: PreTrainedModel, batch: Tensor) -> Tensor:
    """Return the sum over drafters of the mean KL(target || drafter), in nats per token."""
    with torch.no_grad():
        labels = target(input_ids=batch).logits.float().log_softmax(-1).flatten(0, 1)
    losses = []
    for drafter in drafters.values():
        guess = drafter(input_ids=batch).logits.float().log_softmax(-1).flatten(0, 1)
        losses.append(torch.nn.functional.kl_div(guess, labels, log_target=True, reduction="batchmean"))
    return torch.stack(losses).sum()
