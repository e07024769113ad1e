"""How often each pair of models agrees on the next token, from one teacher-forced sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from ..profiler.records.acceptance import PairwiseAcceptance
from ..runtime.layout import lay_out
from ..runtime.models.forward import CausalModel


def pairwise_acceptance(
    models: Mapping[str, CausalModel], texts: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
) -> PairwiseAcceptance:
    """Return greedy agreement and overlap of all pairs along the target's own texts.

    overlap[i][j] is the mean over positions of sum over tokens of min(p_i, p_j): the acceptance of
    speculative sampling with drafter j on target i, and the other way round.

    Args:
        models: by name; all read every text once.
        texts: prompt and continuation tokens of each text.
        temperature: of the distributions; at 0 the models' own are compared.

    Source: Leviathan et al. 2023, arXiv:2211.17192, Theorem 3.5.
    """
    names = tuple(models)
    greedy, overlap = np.zeros((len(names), len(names))), np.zeros((len(names), len(names)))
    positions = 0
    for prompt, continuation in texts:
        probabilities = [_teacher_forced(model, prompt, continuation, temperature) for model in models.values()]
        best = [p.argmax(-1) for p in probabilities]
        positions += len(continuation)
        for i, left in enumerate(probabilities):
            for j, right in enumerate(probabilities):
                greedy[i, j] += float((best[i] == best[j]).sum())
                overlap[i, j] += float(torch.minimum(left, right).sum())
    return PairwiseAcceptance(
        models=names,
        greedy=tuple(tuple(row) for row in (greedy / positions).tolist()),
        overlap=tuple(tuple(row) for row in (overlap / positions).clip(0.0, 1.0).tolist()),
        positions=positions,
    )


def _teacher_forced(
    model: CausalModel, prompt: Sequence[int], continuation: Sequence[int], temperature: float
) -> torch.Tensor:
    """Return (len(continuation), vocabulary) float32: the distribution each continuation token was drawn from."""
    text = [*prompt, *continuation[:-1]]
    count = len(text)
    step = lay_out(
        np.array([text], dtype=np.int64),
        np.arange(count),
        [0],
        np.tri(count, dtype=np.bool_)[None],
        dtype=model.dtype,
        device=model.device,
    )
    logits = model.forward(step, model.new_cache(1, count))[0, len(prompt) - 1 :].float().cpu()
    return torch.softmax(logits / (temperature or 1.0), dim=-1)
