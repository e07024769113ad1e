"""What is recorded at every position: the union of what several strategies would ask a drafter there."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import MeasurementError
from ...planner.records.candidates import NOTHING, Candidates
from ...planner.records.draft import Growth
from ...planner.records.ops import Ops
from ...planner.strategies import REGISTRY
from ...planner.strategies.base import Strategy, Trees
from ...planner.strategies.offers import Level
from ...profiler.records.acceptance import MISS

LEVELS: tuple[Level, ...] = ("standard", "quick", "chains")  # among which time decides, the richest first
CHILDREN, MOST_CHILDREN = 10, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFirst(Strategy):
    """The `nodes` most probable nodes of the drafter's tree, root included: recorded alone, no plan has it.

    Source: Xiong et al. 2024, arXiv:2410.11744 (DySpec); there one node at a time.
    """

    nodes: int
    children: int = CHILDREN  # best next tokens of a node that belong to the tree

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        """Expand candidates that are among the nodes - 1 best so far.

        That covers the final tree, since no node scores better than its ancestors.
        """
        most = self.nodes - 1
        tree = yield from Candidates.below_root(ops, self.children)
        best = tree.scores[:, :0]  # of all layers so far, best first
        while True:
            top = ops.best(tree.scores, most)
            scores, known = ops.take(tree.scores, top), best.shape[1]
            both = ops.concat((best, scores))
            among = ops.best(both, most)
            wanted = ops.marked(among, among >= known, both.shape[1])[:, known:] & (scores > NOTHING)
            if ops.stopped(wanted):
                return tree.best_tree(most)
            best = ops.take(both, among)
            yield from tree.expand(ops.used(ops.where(wanted, top, -1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Which nodes are recorded: those that any of some strategies would expand at batch 1, or the roots alone."""

    children: int = CHILDREN  # best next tokens recorded of each
    trees: tuple[Strategy, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.children < MISS:
            raise MeasurementError(f"a recording keeps 1..{MISS - 1} children of a node, got {self.children}")
        for tree in self.trees:
            if tree.children > self.children:
                raise MeasurementError(
                    f"{tree} looks at {tree.children} children of a node and {self.children} are recorded; record more"
                )


def recipe_of(level: Level) -> Recipe:
    """Return what a level records.

    chains    chains of up to 8; what a static tree keeps is known from the children of each position besides
    quick     chains and narrow beams: chains of up to 8, EAGLE-2 of top 2 to 4
    standard  beams of width 1 to 10 as deep as EAGLE-2's default, the 24 most probable nodes, and TALON's default
              tree; all over the 10 best children of a node
    full      besides these the 60 most probable nodes, TALON's and OPT-Tree's default trees over the 60 best children,
              which is all that they can use, chains of up to 20, and the deepest of EAGLE's published trees
    """
    trees = [tree for strategy in REGISTRY.values() for tree in strategy.recorded_at(level)]
    sizes = {"standard": (24,), "full": (24, 60)}.get(level, ())
    children = MOST_CHILDREN if level == "full" else CHILDREN
    return Recipe(children=children, trees=(*trees, *(BestFirst(nodes=nodes) for nodes in sizes)))
