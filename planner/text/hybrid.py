"""What hybrids of the text and a model do at every position, and which of them compete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product

import numpy as np

from ..replay.acceptance import results_of
from ..replay.positions import PositionResults
from ..replay.recorded import Recording
from ..strategies.hybrid import ElsePolicy, HybridPolicy
from ..strategies.suffix import SuffixPolicy
from ..strategies.suffix_tree import SuffixTreePolicy
from .results import suffix_results, suffix_tree_results

LENGTHS = (4, 8, 16, 32)
MATCHES = (2, 3, 5, 8)  # shortest that is copied from; 5 is published
BOUNDS = ((0, 48), (4, 1))  # factor and offset; the first is none at all
TREE_NODES = (4, 6, 10, 16, 25)
TREE_STARTS = ((1, 1.5), (1, 3.0), (1, 6.0), (2, 0.0))  # shortest match and least score of a tree that is copied
TREE_BOUND, TREE_CHANCE = (4, 1), 0.05


def hybrid_results(text: PositionResults, model: PositionResults) -> PositionResults:
    """Return the text's results where it drafts anything, else the model's; where the text drafts no forward runs.

    Args:
        text: of the hybrid's suffix chain or tree.
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
    recording: Recording, models: Sequence[ElsePolicy], most_tokens: int, *, over_trees: bool = True
) -> Iterator[tuple[HybridPolicy, PositionResults]]:
    """Yield every hybrid of some drafted policies with the grid's suffix chains and trees.

    Args:
        recording: of the drafter.
        models: what it drafts where the text does not.
        most_tokens: that one verify can feed.
        over_trees: whether trees are copied, too.
    """
    chains = [
        SuffixPolicy(length=length, min_match=least, factor=factor, offset=offset, occurrence="last")
        for length, least, (factor, offset) in product(LENGTHS, MATCHES, BOUNDS)
        if length < most_tokens and (factor == 0 or factor * least + offset < length)
    ]
    factor, offset = TREE_BOUND
    trees = [
        SuffixTreePolicy(
            nodes=nodes, factor=factor, offset=offset, least_chance=TREE_CHANCE, min_match=match, least_score=score
        )
        for nodes, (match, score) in product(TREE_NODES, TREE_STARTS)
        if over_trees
        and nodes <= most_tokens
        and score < nodes - 1  # which is the most that its probabilities add up to
    ]
    if not models:
        return
    known = {model: results_of(model, recording) for model in models}
    found: list[Iterator[tuple[SuffixPolicy | SuffixTreePolicy, PositionResults]]] = []
    found += [suffix_results(recording.texts, chains)] if chains else []
    found += [suffix_tree_results(recording.texts, trees)] if trees else []
    for text, results in chain.from_iterable(found):
        for model, drafted in known.items():
            yield HybridPolicy(text=text, model=model), hybrid_results(results, drafted)
