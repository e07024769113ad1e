"""The shape of a draft tree: which node hangs below which, and as which child."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTree:
    """A rooted tree whose nodes say which of their parent's likely next tokens they are.

    Invariant: node 0 is the root (the last committed token), parents come before their children, and siblings are
    different children, so no token is drafted twice.
    """

    parents: tuple[int, ...]  # index of each node's parent; -1 for the root
    ranks: tuple[int, ...]  # which child of its parent, 0 = the drafter's most likely; 0 for the root

    def __post_init__(self) -> None:
        if not self.parents or len(self.parents) != len(self.ranks):
            raise PlanError(
                f"a tree needs one rank per parent and at least the root, got {len(self.parents)} parents "
                f"and {len(self.ranks)} ranks; give both for every node"
            )
        if self.parents[0] != -1 or self.ranks[0] != 0:
            raise PlanError(
                f"node 0 must be the root with parent -1 and rank 0, got parent {self.parents[0]} and "
                f"rank {self.ranks[0]}; put the root first"
            )
        self._require_order()
        self._require_distinct_siblings()

    @property
    def size(self) -> int:
        """Nodes of the tree, the root included: the tokens one verify feeds per sequence."""
        return len(self.parents)

    @property
    def depths(self) -> tuple[int, ...]:
        """Edges between the root and each node."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Edges between the root and the deepest node: the drafter forwards the tree needs."""
        return max(self.depths)

    def children(self, node: int) -> tuple[int, ...]:
        """Return the nodes whose parent is `node`, in index order."""
        return tuple(child for child, parent in enumerate(self.parents) if parent == node)

    def inner_by_depth(self) -> tuple[tuple[int, ...], ...]:
        """Return the nodes that have children, one tuple per depth 0 .. depth - 1."""
        depths, parents = self.depths, set(self.parents[1:])
        inner: list[list[int]] = [[] for _ in range(self.depth)]
        for node in sorted(parents):
            inner[depths[node]].append(node)
        return tuple(tuple(nodes) for nodes in inner)

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes that have children at every depth from 0 on: what each forward of a drafter is fed."""
        return tuple(map(len, self.inner_by_depth()))

    def _require_order(self) -> None:
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node:
                raise PlanError(
                    f"the parent of node {node} must be an earlier node, got {parent}; list parents before children"
                )

    def _require_distinct_siblings(self) -> None:
        seen: set[tuple[int, int]] = set()
        for node in range(1, self.size):
            place = (self.parents[node], self.ranks[node])
            if place[1] < 0 or place in seen:
                raise PlanError(
                    f"node {node} is child {place[1]} of node {place[0]}, which is negative or taken; "
                    "give siblings different ranks from 0 up"
                )
            seen.add(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFacts:
    """Means over rounds, by depth of the drafted token: entry 0 is depth 1, the tokens after the committed text."""

    verified: tuple[float, ...]  # nodes per sequence that the target verifies there
    reached: tuple[float, ...]  # share of rounds in which the target takes one of them; never rising
    taken: tuple[float, ...] = ()  # of a fixed tree, share by node, the root's 1.0 first; else empty

    def __post_init__(self) -> None:
        if len(self.verified) != len(self.reached):
            raise PlanError(f"a shape needs as many depths in verified as in reached, got {self}")
        above = (1.0, *self.reached)
        if not all(0.0 <= share <= more + 1e-9 for share, more in zip(self.reached, above, strict=False)):
            raise PlanError(f"the shares of rounds that reach a depth must fall from 1 to 0, got {self.reached}")
        if self.taken and not (self.taken[0] == 1.0 and all(0.0 <= share <= 1.0 for share in self.taken)):
            raise PlanError(f"every round takes the root and nodes are taken in 0..1 of them, got {self.taken}")
