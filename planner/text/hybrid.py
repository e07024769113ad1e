"""What hybrids of the text and a model do at every position, and which of them compete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from ..policies import HybridPolicy, SuffixPolicy
from ..policies.hybrid import ElsePolicy
from ..replay.acceptance import results_of
from ..replay.positions import PositionResults
from ..replay.recorded import Recording
from .results import suffix_results

LENGTHS = (4, 8, 16, 32)
MATCHES = (2, 3, 5, 8)  # shortest that is copied from; 5 is published
BOUNDS = ((0, 48), (4, 1))  # factor and offset; the first is none at all


def hybrid_results(text: PositionResults, model: PositionResults) -> PositionResults:
    """Return the text's results where it drafts anything, else the model's; where the text drafts no forward runs.

    Args:
        text: of the hybrid's suffix chain.
        model: of what its model drafts.
    """
    copies = text.sizes > 1
    return PositionResults(
        accepted=np.where(copies, text.accepted, model.accepted),
        sizes=np.where(copies, text.sizes, model.sizes),
        censored=model.censored & ~copies,
        widths=np.where(copies[:, None], 0, model.widths),
    )


def hybrids(
    recording: Recording, models: Sequence[ElsePolicy], most_tokens: int
) -> Iterator[tuple[HybridPolicy, PositionResults]]:
    """Yield every hybrid of some drafted policies with the grid's suffix chains.

    Args:
        recording: of the drafter.
        models: what it drafts where the text does not.
        most_tokens: that one verify can feed.
    """
    chains = [
        SuffixPolicy(length=length, min_match=least, factor=factor, offset=offset, occurrence="last")
        for length, least, (factor, offset) in product(LENGTHS, MATCHES, BOUNDS)
        if length < most_tokens and (factor == 0 or factor * least + offset < length)
    ]
    if not chains or not models:
        return
    known = {model: results_of(model, recording) for model in models}
    for chain, text in suffix_results(recording.texts, chains):
        for model, drafted in known.items():
            yield HybridPolicy(text=chain, model=model), hybrid_results(text, drafted)
