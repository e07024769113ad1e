"""Acceptance: the longest path of a draft tree that the target says itself, for one sequence and for a batch.

A device accepts captured rounds itself (`backends/device_acceptance.py`). Lossy policies have their own `Rule`.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...planner.kernels.arrays import Ints
from ...planner.records.draft import DraftBatch
from ..batch.sequence import Sequence
from ..kernels.trees import walk, whole
from ..models.forward import Draws
from ..models.kernels.host_draws import follow
from ..models.kv_cache import Kept


@dataclass(slots=True, kw_only=True)
class Acceptance:
    """One sequence's accepted path, with one token to emit per node; `lossy` places are not the target's own."""

    nodes: list[int]
    drawn: list[int]
    lossy: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What the rule met along one sequence's chain.

    Attributes:
        matched, mismatched: drafted tokens that were, or were not, the target's own, up to and with the chain's end.
        asked, pivots: tokens that PAD's classifier judged, and their chances of being pivots.
    """

    matched: int = 0
    mismatched: int = 0
    entropies: tuple[float, ...] = ()  # of every evaluated gate of FLy
    pivots: tuple[float, ...] = ()
    asked: tuple[int, ...] = ()


class Rule(Protocol):
    """How a lossy policy accepts the chains of one round; see `lossy_rule.py`."""

    def accept(
        self,
        slot: int,
        tokens: Many[int],
        parents: Many[int],
        size: int,
        draws: Many[int],
        stop: Collection[int],
    ) -> tuple[Acceptance, Gates]:
        """Return the accepted part of one sequence's chain, and the gates it met."""


@dataclass(slots=True)
class Accepted:
    """The longest accepted path of every sequence's tree, not yet committed."""

    paths: list[Acceptance]
    gates: list[Gates] = field(default_factory=list)  # what a lossy rule met, of each sequence; none without loss

    def moves(self, batch: Many[Sequence]) -> list[Kept]:
        """Return which keys of the target's cache to move together."""
        return [
            (slot, sequence.context, path.nodes)
            for slot, (sequence, path) in enumerate(zip(batch, self.paths, strict=True))
        ]


def accept(tokens: Many[int], parents: Many[int], size: int, draws: Many[int]) -> Acceptance:
    """Return the longest path from the root whose every node is what the target drew before it.

    Args:
        tokens, parents: (n,) drafted ids, the root's ignored; parents before children.
        size: real nodes, root included; the rest is padding.
        draws: (n,) the target's draw behind each node.

    Source: the match rule of tree verification, Miao et al. 2023, arXiv:2305.09781.
    """
    nodes, drawn = [0], [draws[0]]
    while (child := _child(tokens, parents, size, nodes[-1], drawn[-1])) is not None:
        nodes.append(child)
        drawn.append(draws[child])
    return Acceptance(nodes=nodes, drawn=drawn)


def _child(tokens: Many[int], parents: Many[int], size: int, parent: int, token: int) -> int | None:
    """Return the last child with a token; a search, since few nodes of a tree are ever visited."""
    found, child = None, parent
    while True:
        try:
            child = parents.index(parent, child + 1, size)
        except ValueError:
            return found
        if tokens[child] == token:
            found = child


def borne_out(drafted: Many[int], text: Many[int]) -> int:
    """Return how many tokens of a draft agree with the text, from the first on."""
    pairs = zip(drafted, text, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(drafted), len(text)))


def accepted(batch: Many[Sequence], draft: DraftBatch, draws: Many[list[int]], rule: Rule | None = None) -> Accepted:
    """Return every sequence's path; `draws` is the target's draw behind each node, `rule` a lossy round's."""
    tokens, parents, sizes = draft.tokens.tolist(), draft.parents.tolist(), draft.sizes.tolist()
    found = Accepted(paths=[])
    for slot, sequence in enumerate(batch):
        drafted = (tokens[slot], parents[slot], sizes[slot], draws[slot])
        if rule is None:
            found.paths.append(accept(*drafted))
            continue
        path, gates = rule.accept(slot, *drafted, stop=sequence.request.stop)
        found.paths.append(path)
        found.gates.append(gates)
    return found


def accepted_by(scores: NDArray[Any], draws: Draws, draft: DraftBatch) -> Accepted:
    """Return what `accepted` does, drawing behind accepted nodes only; `scores` are bits, see `bits_for_kernels`."""
    batch, nodes = draft.tokens.shape
    paths = np.empty((batch, 2, nodes + 1), dtype=np.int64)
    follow(scores, whole(draft.tokens), whole(draft.parents), whole(draft.sizes), *draws, paths)
    return _accepted_along(paths)


def accepted_of(draws: Ints, draft: DraftBatch) -> Accepted:
    """Return what `accepted` does for draws (batch, at least nodes), by a compiled call."""
    batch, nodes = draft.tokens.shape
    paths = np.empty((batch, 2, nodes + 1), dtype=np.int64)
    walk(np.ascontiguousarray(draws), whole(draft.tokens), whole(draft.parents), whole(draft.sizes), paths)
    return _accepted_along(paths)


def _accepted_along(paths: Ints) -> Accepted:
    """Return paths that kernels wrote, (batch, 2, nodes + 1): length and nodes, then the tokens drawn."""
    found = [Acceptance(nodes=path[1 : path[0] + 1], drawn=drawn[: path[0]]) for path, drawn in paths.tolist()]
    return Accepted(paths=found)


def accepted_ahead(drawn: Ints) -> Accepted:
    """Return the paths of a round that a device has accepted: each row's first `drawn[:, 0]` tokens of the rest.

    Their nodes are empty: the keys of accepted nodes have moved already.
    """
    return Accepted(paths=[Acceptance(nodes=[], drawn=tokens[1 : 1 + tokens[0]]) for tokens in drawn.tolist()])
