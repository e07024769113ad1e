"""Follow the target's draws down a draft tree."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Acceptance:
    """The path one sequence took: node 0, then the accepted nodes; one token to emit per node on it.

    Attributes:
        lossy: places among the tokens of those that the target would not have said itself; see `lossy.py`.
    """

    nodes: list[int]
    drawn: list[int]
    lossy: tuple[int, ...] = ()


def accept(tokens: Many[int], parents: Many[int], size: int, draws: Many[int]) -> Acceptance:
    """Return the longest path from the root whose every node is what the target drew before it.

    Args:
        tokens: (n,) drafted ids; tokens[0] is the root's and is not read.
        parents: (n,) parents before children.
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
    """Return the last child of a node that has a token; few nodes of a tree are ever looked at."""
    found, child = None, parent
    while True:
        try:
            child = parents.index(parent, child + 1, size)
        except ValueError:
            return found
        if tokens[child] == token:
            found = child
