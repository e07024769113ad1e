"""Follow the target's draws down a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Sequence as Many
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Acceptance:
    """One sequence's accepted path, with one token to emit per node; `lossy` places are not the target's own."""

    nodes: list[int]
    drawn: list[int]
    lossy: tuple[int, ...] = ()


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


def borne_out(drafted: Sequence[int], text: Sequence[int]) -> int:
    """Return how many tokens of a draft agree with the text, from the first on."""
    pairs = zip(drafted, text, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(drafted), len(text)))
