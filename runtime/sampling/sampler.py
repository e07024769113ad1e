"""Draw tokens from logits: greedy, or sampled with noise keyed by (seed, position).

A sampled token is argmax(scores + gumbel): scores are the logits after temperature, masks and penalty (see
sampling.py), and the noise is a pure function of the request's seed, the token's position in the text and the token id.
So the target's own sampled continuation is fixed by (prompt, seed) like a greedy one. Verification only has to *match*
it, whatever drew the tree, and the output is the target's own, token for token.

Source: see noise.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...planner.kernels.arrays import Ints
from ..batch.sequence import NO_NUMBERS, Sequence, shared_temperature
from ..batch.transfer import fetched, sent
from ..models.forward import Draws
from ..models.kernels.host_draws import NO_TOKEN
from .filters import kept_by_top_k, masks_of, on_rows, processed, seen_tokens
from .noise import gumbel


def draw(
    logits: Tensor, sequences: Many[Sequence], depths: Ints, paths: Ints | Tensor | None = None
) -> list[list[int]]:
    """Return the target's draw behind every node of every row, on the host.

    `logits` is (batch, n, vocabulary), `depths` (batch, n) from the last committed token. `paths` (batch, n, any) holds
    each node's path, see `sampling.tree_paths`; only a repetition penalty reads it. None: nodes follow the text.
    """
    return drawn_from(scored(logits, sequences, paths), sequences, depths)


def require_numbers(logits: Tensor) -> None:
    """Raise ModelError where logits are not finite; in rounds the draws report that."""
    if not math.isfinite(fetched(logits.amax().float()).item()):
        raise ModelError(NO_NUMBERS)


def draws_of(batch: Many[Sequence]) -> Draws:
    """Return how kernels draw for the sequences of a round, none of which penalises repetition."""
    if shared_temperature(batch) == 0.0:
        return greedy_draws(len(batch))
    asked = [(s.request, len(s.tokens)) for s in batch]
    places = np.array([(each.seed, place, kept_by_top_k(each)) for each, place in asked], dtype=np.int64)
    return Draws(places, np.array([masks_of(each) for each, _ in asked], dtype=np.float32))


def is_unpenalised(sequences: Many[Sequence]) -> bool:
    """Whether draws depend on scores and noise alone, not on the tokens of the texts."""
    return shared_temperature(sequences) is not None or not any(s.request.penalises for s in sequences)


def drafted_draws(sequences: Many[Sequence]) -> Draws | None:
    """Return how kernels draw for some sequences, see `is_unpenalised`; None where all are greedy."""
    return None if shared_temperature(sequences) == 0.0 else draws_of(sequences)


@lru_cache(maxsize=256)
def greedy_draws(batch: int) -> Draws:
    """Return how kernels find the best tokens; shared, so read-only."""
    return Draws(np.zeros((batch, 3), dtype=np.int64), np.zeros((batch, 3), dtype=np.float32))


def scored(logits: Tensor, sequences: Many[Sequence], paths: Ints | Tensor | None = None) -> Tensor:
    """Return the scores (batch, n, vocabulary) to draw from, before noise; for the arguments see `draw`."""
    return processed(logits, [s.request for s in sequences], seen_tokens(sequences, paths, logits.device))


def drawn_from(scores: Tensor, sequences: Many[Sequence], depths: Ints) -> list[list[int]]:
    """Return the draw behind every node from `scored` scores and the noise of its place."""
    rows = [row for row, s in enumerate(sequences) if s.request.temperature > 0]
    own = [sequences[row] for row in rows]
    return best_tokens(on_rows(scores, rows, lambda some: some + noise(own, depths[rows], some)))


def best_tokens(scores: Tensor) -> list[list[int]]:
    """Return the first best token of scores (batch, n, vocabulary), on the host; `NO_TOKEN` if not finite."""
    if scores.device.type == "cpu" and scores.dtype != torch.float64:
        # numpy's float32 arg-max is several times faster than torch's in bf16 on a CPU
        numbers = scores.float().numpy()
        host = numbers.argmax(-1)
        is_sound = np.isfinite(np.take_along_axis(numbers, host[..., None], -1)[..., 0])
        told: list[list[int]] = np.where(is_sound, host, NO_TOKEN).tolist()
        return told
    best = scores.argmax(-1)
    is_finite = scores.gather(-1, best.unsqueeze(-1)).squeeze(-1).isfinite()
    found: list[list[int]] = fetched(best.where(is_finite, NO_TOKEN)).tolist()
    return found


def noise(sequences: Many[Sequence], depths: Ints, like: Tensor) -> Tensor:
    """Return noise (rows, n, vocabulary) for draws behind nodes at those depths."""
    device = like.device
    first = np.array(
        [[len(s.tokens)] for s in sequences], dtype=np.int64
    )  # place in the text of the token behind the root
    places = sent(first + np.arange(int(depths.max()) + 1), device)
    seeds = sent(np.array([[s.request.seed] for s in sequences], dtype=np.int64), device)
    lines = gumbel(seeds, places, like.shape[-1])  # one per depth: nodes of one depth share it
    rows = torch.arange(len(sequences), device=device).unsqueeze(1)
    return lines[rows, sent(np.ascontiguousarray(depths), device)]
