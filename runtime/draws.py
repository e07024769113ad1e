"""Draw tokens from logits: greedy, or sampled with noise keyed by (seed, position).

A sampled token is argmax(scores + gumbel), where the scores are the logits after temperature, masks and penalty
(see sampling.py) and the noise is a pure function of the request's seed, the token's position in the text and the
token id. So the target's own sampled continuation is fixed by (prompt, seed) like a greedy one: verification only has
to *match* it, whatever drew the tree, and the output is the target's own, token for token.

Source: Gumbel-max trick; shared noise between drafter and target: Daliri, Musco, Suresh 2024,
arXiv:2408.07978 (drafter-invariant speculative decoding).
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from .layout import Ints
from .requests import Sequence
from .sampling import on_rows, processed, seen_tokens

# Steele, Lea, Flood 2014, splitmix64's finaliser, as signed 64-bit integers.
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
_MULTIPLIER_2 = 0x94D049BB133111EB - 2**64
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_POSITION_STEP = 0xD1B54A32D192ED03 - 2**64
_BELOW_ONE = 1.0 - 2.0**-53  # the largest number below 1


def draw(
    logits: Tensor, sequences: Many[Sequence], depths: Ints, paths: Ints | Tensor | None = None
) -> list[list[int]]:
    """Return the target's draw behind every node of every row, on the host.

    Args:
        logits: (batch, n, vocabulary).
        sequences: (batch,), whose requests say how to draw.
        depths: (batch, n), distance of each node from the last committed token.
        paths: (batch, n, any) tokens of each node's path behind the committed text, as `sampling.tree_paths` gives
            them; read only where a request penalises repetition. None: every node stands right behind that text.
    """
    scores = processed(logits, [s.request for s in sequences], seen_tokens(sequences, paths, logits.device))
    rows = [row for row, s in enumerate(sequences) if s.request.temperature > 0]
    own = [sequences[row] for row in rows]
    return best_tokens(on_rows(scores, rows, lambda some: some + noise(own, depths[rows], some)))


def best_tokens(scores: Tensor) -> list[list[int]]:
    """Return the best-scored token behind every node, the first of equals, on the host.

    Args:
        scores: (batch, n, vocabulary).
    """
    if scores.device.type == "cpu" and scores.dtype != torch.float64:
        # numpy's float32 arg-max is several times faster than torch's in bf16 on a CPU
        host: list[list[int]] = scores.float().numpy().argmax(-1).tolist()
        return host
    best: list[list[int]] = scores.argmax(-1).tolist()
    return best


def noise(sequences: Many[Sequence], depths: Ints, like: Tensor) -> Tensor:
    """Return the noise (rows, n, vocabulary) of what is drawn behind nodes at those depths, shaped like the scores."""
    device = like.device
    first = torch.tensor([[len(s.tokens)] for s in sequences])  # place in the text of the token behind the root
    places = (first + torch.arange(int(depths.max()) + 1)).to(device)
    seeds = torch.tensor([[s.request.seed] for s in sequences], device=device)
    lines = gumbel(seeds, places, like.shape[-1])  # one per depth: nodes of one depth share it
    rows = torch.arange(len(sequences), device=device).unsqueeze(1)
    return lines[rows, torch.from_numpy(depths).to(device)]


def gumbel(seeds: Tensor, positions: Tensor, vocabulary: int) -> Tensor:
    """Return (..., vocabulary) standard Gumbel noise, the same on every device; the arguments are broadcast."""
    tokens = torch.arange(vocabulary, device=seeds.device)
    key = _mix(_mix(seeds + _GOLDEN) + positions * _POSITION_STEP)
    bits = _mix(key.unsqueeze(-1) + (tokens + 1) * _GOLDEN)
    return -torch.log(-torch.log(open_unit(bits))).float()


def open_unit(bits: Tensor) -> Tensor:
    """Return numbers in (0, 1), never 0 or 1, from 64 random bits each: the noise is finite, or a mask would leak."""
    return ((((bits >> 11) & (2**53 - 1)).double() + 0.5) * 2.0**-53).clamp_(max=_BELOW_ONE)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & (2**34 - 1))) * _MULTIPLIER_1
    z = (z ^ ((z >> 27) & (2**37 - 1))) * _MULTIPLIER_2
    return z ^ ((z >> 31) & (2**33 - 1))
