"""How sure a tokens-per-second estimate is, from the spread over recorded texts.

    rate = sum over texts of tokens / sum over texts of ms

The texts are a sample, and so are the texts the plan will meet.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .candidate import Candidate
from .cost import Floats

RESAMPLES = 400


def resampling_weights(texts: int, seed: int) -> Floats:
    """Return (RESAMPLES, texts): how often each text is drawn when texts are drawn with replacement."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(texts, np.full(texts, 1.0 / texts), size=RESAMPLES).astype(np.float64)


def resampled_rates(candidates: list[Candidate], weights: Floats) -> Floats:
    """Return (candidates, resamples): tokens per millisecond; columns are paired."""
    tokens, ms = _by_text(candidates)
    drawn_ms: Floats = ms @ weights.T
    return tokens @ weights.T / np.maximum(drawn_ms, np.finfo(np.float64).tiny)


def relative_error(rates: Floats, texts: int) -> float:
    """Return the relative standard error of a rate from its resamples (resamples,).

    The bootstrap's variance is that of the plug-in estimate, too small by (texts - 1) / texts.
    """
    return float(rates.std() / rates.mean() * np.sqrt(texts / (texts - 1)))


def optimism(candidates: list[Candidate]) -> float:
    """Return by how much choosing on the texts flatters the choice, relative, at least 0.

    Even and odd texts each choose their fastest candidate and the other half scores it. A half
    that merely is easier cancels out in the mean.
    """
    tokens, ms = _by_text(candidates)
    halves = [_rates(tokens[:, start::2], ms[:, start::2]) for start in (0, 1)]
    gaps = []
    for own, other in (halves, halves[::-1]):
        best = int(own.argmax())
        gaps.append(2.0 * (own[best] - other[best]) / (own[best] + other[best]))
    mean = float(np.mean(gaps))
    return max(mean, 0.0) if np.isfinite(mean) else 0.0


def _rates(tokens: Floats, ms: Floats) -> Floats:
    spent: Floats = ms.sum(axis=1)
    emitted: Floats = tokens.sum(axis=1)
    return emitted / np.maximum(spent, np.finfo(np.float64).tiny)


def _by_text(candidates: list[Candidate]) -> tuple[Floats, Floats]:
    tokens: NDArray[np.float64] = np.array([candidate.tokens for candidate in candidates], dtype=np.float64)
    return tokens, np.array([candidate.ms for candidate in candidates])
