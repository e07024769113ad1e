"""By how much choosing one way among many on recorded texts flatters the chosen one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .walk import RESAMPLINGS

Floats = NDArray[np.float64]


def flattery(
    tokens: Floats, ms: Floats, simplicity: Sequence[tuple[int, int]], final: int, *, tie: float, seed: int
) -> float:
    """Return by how much the choice looks better on these texts than it is, relatively, at least 0.

    Texts are resampled. On them the best way looks better than on all texts, by luck of the draw, which any way shares,
    and of the choice. Only the second is counted. Held-out texts would instead charge for choices from fewer texts,
    which are worse where texts are few.

    `tokens`, `ms` are (ways, texts). Less `simplicity` goes first within a `tie`, a relative difference; `final` is the
    place of the choice on all texts.

    Source: Efron 1983, Estimating the error rate of a prediction rule; Efron and Tibshirani 1993, section 17.6.
    """
    own = tokens.sum(axis=1) / ms.sum(axis=1)
    by_simplicity = sorted(range(len(own)), key=lambda place: simplicity[place])
    texts = tokens.shape[1]
    found = []
    for drawn in np.random.default_rng(seed).integers(0, texts, size=(RESAMPLINGS, texts)):
        rates = tokens[:, drawn].sum(axis=1) / ms[:, drawn].sum(axis=1)
        near = [place for place in by_simplicity if rates[place] >= (1.0 - tie) * rates.max()]
        simplest = [place for place in near if simplicity[place] == simplicity[near[0]]]
        chosen = max(simplest, key=lambda place: rates[place])
        found.append(rates[chosen] / own[chosen] - rates[final] / own[final])
    return max(0.0, float(np.mean(found)))
