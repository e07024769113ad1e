"""Why a drafter agrees less than it could: the other reading that agrees more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ...planner.kernels.arrays import Bools
from ...runtime.models.forward import CausalModel
from ...runtime.models.tapped import require_lean
from .alternative import OtherReading, Repair, gains
from .head_causes import HeadReadings
from .model_causes import model_alternatives
from .own_text import OwnText
from .pair import Pair

Round = Callable[[], Iterator[OtherReading]]
TRIES_S = 20.0  # seconds after which no further reading is begun


def likely_cause(
    pair: Pair, target: CausalModel, drafter: CausalModel, texts: Sequence[OwnText], own: Bools, high: float
) -> Repair | None:
    """Return the other reading that agrees most, None where none agrees more beyond chance, or none is known.

    `own` (positions,) are the hits of the drafter as its files say. Other readings of a language model, and the costly
    ones of a head, are tried only where its share is below `high`.
    """
    rounds: tuple[Round, ...] = ()
    if pair.role == "head":
        readings = HeadReadings(pair, require_lean(target), texts)
        rounds = (readings.likely, readings.searched) if own.mean() < high else (readings.likely,)
    elif pair.role == "draft" and own.mean() < high:
        rounds = (lambda: model_alternatives(pair, drafter, texts),)
    until = time.monotonic() + TRIES_S
    for each in rounds:
        if (found := _best(each(), own, until)) is not None:
            return found
    return None


def _best(alternatives: Iterator[OtherReading], own: Bools, until: float) -> Repair | None:
    best: Repair | None = None
    for alternative in alternatives:
        hits = alternative.hits()
        if gains(own, hits) and (best is None or hits.mean() > best.share):
            best = Repair(alternative=alternative, share=float(hits.mean()))
        if time.monotonic() > until:
            break
    return best
