"""How sure a tokens-per-second estimate is, from the spread over the recorded texts.

    rate = sum over texts of tokens / sum over texts of ms

The texts are a sample, and so are the texts the plan will meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..pricing.cost import Floats
from .candidate import Candidate

RESAMPLES = 400
UPPER = 0.95  # share below the upper end of a 90 % interval
TINY = float(np.finfo(np.float64).tiny)


def resampling_weights(texts: int, seed: int) -> Floats:
    """Return (RESAMPLES, texts): how often each text is drawn when texts are drawn with replacement."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(texts, np.full(texts, 1.0 / texts), size=RESAMPLES).astype(np.float64)


def resampled_rates(candidates: Sequence[Candidate], weights: Floats) -> Floats:
    """Return (candidates, resamples): tokens per millisecond; columns are paired."""
    return resampled(*by_text(candidates), weights)


def resampled(tokens: Floats, ms: Floats, weights: Floats) -> Floats:
    """Return (candidates, resamples): tokens per millisecond; inputs are (candidates, texts), (resamples, texts)."""
    drawn_ms: Floats = ms @ weights.T
    return tokens @ weights.T / np.maximum(drawn_ms, TINY)


def rates_of(tokens: Floats, ms: Floats) -> Floats:
    """Return (candidates,): tokens per millisecond over all texts."""
    spent: Floats = ms.sum(axis=1)
    emitted: Floats = tokens.sum(axis=1)
    return emitted / np.maximum(spent, TINY)


def relative_error(rates: Floats, texts: int) -> float:
    """Return the relative standard error of a rate from its resamples (resamples,)."""
    return float(rates.std() / rates.mean() * np.sqrt(texts / (texts - 1)))


def of_few(error: float, texts: int) -> float:
    """Return the standard error whose normal 90 % interval equals Student's for so many texts.

    The spread of few texts is uncertain too: the interval of 2 is nearly four times as wide, of 24 by 4 %.
    """
    from scipy.special import ndtri, stdtrit

    return error * float(stdtrit(texts - 1, UPPER) / ndtri(UPPER))


def by_text(candidates: Sequence[Candidate]) -> tuple[Floats, Floats]:
    """Return tokens and milliseconds of every candidate on every text: (candidates, texts) each."""
    tokens: NDArray[np.float64] = np.array([candidate.tokens for candidate in candidates], dtype=np.float64)
    return tokens, np.array([candidate.ms for candidate in candidates])
