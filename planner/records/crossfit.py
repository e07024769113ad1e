"""Choose on some texts, predict on others: how much of a choice's lead is luck.

Texts are dealt into folds. For each fold the rule of the final choice chooses on all other folds; the fold's own tokens
and time then show what such a choice is worth on new texts:

    cross-fitted rate = sum over folds of tokens(choice of the others) / sum over folds of ms(choice of the others)
    optimism          = 1 - cross-fitted rate / rate of the final choice on all texts

A policy whose knobs were searched on a half of the folds may be chosen only for folds of the other half.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Choose = Callable[[Ints, Bools], int]  # (places that may be chosen, texts to choose by) -> place
FOLDS = 4
HALVES = 2  # of the folds; knobs are searched on one half at a time
EVERYWHERE = -1  # the half of a policy that was not searched for


def folds_of(texts: int) -> Ints:
    """Return (texts,): the fold of each text; neighbours, which are often alike, are dealt apart."""
    return np.arange(texts) % min(FOLDS, texts)


def half_of(folds: Ints) -> Ints:
    """Return the half each fold belongs to."""
    return folds % HALVES


def texts_of_half(texts: int, half: int) -> Bools:
    """Return (texts,): which of them a half holds."""
    is_of_half: Bools = half_of(folds_of(texts)) == half
    return is_of_half


def cross_fitted_rate(tokens: Floats, ms: Floats, searched_on: Ints, choose: Choose) -> float:
    """Return tokens per millisecond of choices, by the final choice's rule, on the texts that did not make them.

    `tokens`, `ms` are (candidates, texts); `searched_on` (candidates,) is the half of the folds whose texts chose its
    knobs, or EVERYWHERE. Folds without a choice are left out; NaN where their texts have no steady rounds, or there are
    no folds.
    """
    folds = folds_of(tokens.shape[1])
    spent = emitted = 0.0
    for fold in range(int(folds.max()) + 1):
        is_held_out = folds == fold
        may = np.flatnonzero((searched_on == EVERYWHERE) | (searched_on != half_of(np.array(fold))))
        if not len(may):  # all were searched on this fold's own half
            continue
        chosen = choose(may, ~is_held_out)
        emitted += float(tokens[chosen, is_held_out].sum())
        spent += float(ms[chosen, is_held_out].sum())
    return emitted / spent if spent > 0.0 else float("nan")
