"""What the host takes of a round of one kind: a line through its forwards and nodes, and the kinds that have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PLAIN = "plain"  # the kind whose rounds are the common part of all others
HYBRID, TEXT, CHAIN = "hybrid", "suffix", "chain"  # the kind that drafts in two ways, and kinds that these are like
HYBRID_OF = "hybrid of {}"  # a hybrid whose model drafts in another kind than chains
TEXT_TREE, OVER_TREES = "suffix-tree", "{} over suffix trees"  # and any whose text drafts trees


class HostLine(NamedTuple):
    """Milliseconds of a round of one kind: without nodes, per drafter forward, per node, and of a drafter's run.

    `forward_ms` is negative where forwards take less in a draft than alone.
    """

    round_ms: float
    forward_ms: float
    node_ms: float
    drafted_ms: float = 0.0  # of kinds that ask a drafter in some rounds only; others have it in `round_ms`

    @overload
    def at(self, draft_forwards: int, nodes: int) -> float: ...

    @overload
    def at(self, draft_forwards: Ints, nodes: Ints) -> Floats: ...

    def at(self, draft_forwards: Any, nodes: Any) -> Any:  # as the overloads say
        """Return the host milliseconds of a round of that shape, or of each of (rounds,) such."""
        drafted_ms = self.drafted_ms * (draft_forwards > 0)
        return self.round_ms + drafted_ms + self.forward_ms * draft_forwards + self.node_ms * nodes


def hybrids_among(lines: dict[str, HostLine], drafted: Sequence[str]) -> dict[str, HostLine]:
    """Return the lines of untimed hybrids, whose model or text grows trees; `drafted` kinds ask a drafter."""
    if HYBRID not in lines:
        return {}
    timed = lines[HYBRID]
    found = {
        HYBRID_OF.format(kind): timed._replace(forward_ms=max(timed.forward_ms, lines[kind].forward_ms))
        for kind in drafted
        if kind not in (CHAIN, HYBRID)
    }
    if TEXT_TREE not in lines:
        return found
    alike = next(lines[kind] for kind in (TEXT, PLAIN, TEXT_TREE) if kind in lines)
    dearer_ms = lines[TEXT_TREE].round_ms - alike.round_ms
    hybrids = {HYBRID: timed, **found}
    over_trees = {kind: line._replace(round_ms=line.round_ms + dearer_ms) for kind, line in hybrids.items()}
    return found | {OVER_TREES.format(kind): line for kind, line in over_trees.items()}
