"""The solvers' view of the inputs: arrays over nodes, edges and ways to finish.

    node      a model or block drafter by number: models first, the target is the last of them
    edge      verifier i over drafter j; allowed if j < i or j is a block that i can verify
    finish    how the target verifies its drafter: the bare chain, or one of the trees
    stack     nodes and thresholds bottom to top without the target, and a finish

Arrays "by drafts" have the number of drafted tokens as their last index: verifying n drafts feeds n + 1 tokens.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from .records import Hierarchy, HierarchyInputs, Level

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Stack(NamedTuple):
    """A hierarchy in numbers; finish is -1 where the target decodes alone."""

    nodes: tuple[int, ...] = ()
    thresholds: tuple[int, ...] = ()
    finish: int = -1


class Tables:
    """The inputs as arrays; `nodes` counts models and block drafters, D is `most_drafts` of a verification.

    Attributes:
        most_drawn: (nodes,), most tokens a node can draft as a source.
        single_ms: (models,), one token of a model decoding alone.
        block_ms: (nodes, D + 1) by drafts; infinite for models.
        survival: (models, nodes, D + 1) by drafts: chance that the first k drafts are all accepted; 1 at 0.
        verify_ms: (models, nodes, D + 1) by drafts; infinite beyond the limit.
        limit: (models, nodes), most drafts of an edge; 0 where it is not allowed.
        finish_drafter: (finishes,), the node it needs on top.
        finish_tree: (finishes,), number of the tree, -1 for the bare chain.
        finish_tokens, finish_ms: (finishes, D + 1) by drafts: mean tokens of a round; time, infinite beyond the limit.
        finish_limit: (finishes,).
    """

    def __init__(self, inputs: HierarchyInputs) -> None:
        """Lay the arrays out."""
        self.inputs = inputs
        models = len(inputs.models)
        self.target, self.nodes = models - 1, models + len(inputs.blocks)
        self._curves = _edge_curves(inputs)
        self.limit = np.zeros((models, self.nodes), dtype=np.int64)
        for (verifier, drafter), curve in self._curves.items():
            self.limit[verifier, drafter] = min(len(curve) - 2, self._most_accepted(verifier, drafter))
        trees = [len(tree.expected_tokens) - 1 for tree in inputs.trees]
        self.most_drafts = max(1, int(self.limit.max()), *trees)
        self._lay_sources()
        self._lay_edges()
        self._lay_finishes()

    @property
    def plain_ms(self) -> float:
        """Milliseconds per token of the target alone."""
        return float(self.single_ms[self.target])

    def stack_of(self, hierarchy: Hierarchy) -> Stack:
        """Return the hierarchy in numbers; PlanError: unknown name, impossible order, or too high a threshold."""
        if not hierarchy.levels:
            return Stack()
        names = {name: node for node, name in enumerate(self.inputs.node_names)}
        unknown = [level.name for level in hierarchy.levels if names.get(level.name, self.target) == self.target]
        if unknown:
            raise PlanError(f"{hierarchy.label}: no drafter is called {unknown}; there are {sorted(names)}")
        nodes = tuple(names[level.name] for level in hierarchy.levels)
        stack = Stack(nodes, tuple(level.threshold for level in hierarchy.levels), self._finish(hierarchy, nodes[-1]))
        for place, (threshold, limit) in enumerate(zip(stack.thresholds, self.limits_of(stack), strict=True)):
            if threshold > limit:
                raise PlanError(
                    f"{hierarchy.label}: level {place} drafts {threshold} tokens, the level above takes {limit}; "
                    "order models smallest first, lower the threshold, or measure more tokens"
                )
        return stack

    def limits_of(self, stack: Stack) -> list[int]:
        """Return, per level, the most tokens that the level above takes; 0 where it may not stand there."""
        above = [int(self.limit[upper, lower]) for lower, upper in pairwise(stack.nodes) if upper <= self.target]
        if len(above) < len(stack.nodes) - 1:
            return [0] * len(stack.nodes)  # a block cannot verify
        limits = [*above, int(self.finish_limit[stack.finish])]
        limits[0] = min(limits[0], int(self.most_drawn[stack.nodes[0]]))
        return limits

    def hierarchy_of(self, stack: Stack) -> Hierarchy:
        """Return the stack in names."""
        names, tree = self.inputs.node_names, -1 if stack.finish < 0 else int(self.finish_tree[stack.finish])
        return Hierarchy(
            levels=tuple(
                Level(name=names[node], threshold=threshold)
                for node, threshold in zip(stack.nodes, stack.thresholds, strict=True)
            ),
            tree=None if tree < 0 else self.inputs.trees[tree].name,
        )

    def finishes_of(self, drafter: int) -> list[int]:
        """Return the finishes that need this node on top, the bare chain first."""
        return [int(finish) for finish in np.flatnonzero(self.finish_drafter == drafter)]

    def _most_accepted(self, verifier: int, drafter: int) -> int:
        """Return how many drafts of a block have a known acceptance; no limit for a model's."""
        models = self.inputs.models
        if drafter < len(models):
            return len(self._curves[verifier, drafter])
        block = self.inputs.blocks[drafter - len(models)]
        return min(len(block.acceptance[models[verifier].name]), len(block.draft_ms) - 1)

    def _lay_sources(self) -> None:
        models, blocks = self.inputs.models, self.inputs.blocks
        self.single_ms = np.array([model.forward_ms[1] + model.host_ms for model in models])
        self.most_drawn = np.full(self.nodes, self.most_drafts)
        self.block_ms = np.full((self.nodes, self.most_drafts + 1), np.inf)
        for node, block in enumerate(blocks, start=len(models)):
            drawn = min(len(block.draft_ms) - 1, self.most_drafts)
            self.most_drawn[node] = drawn
            self.block_ms[node, 1 : drawn + 1] = block.draft_ms[1 : drawn + 1]

    def _lay_edges(self) -> None:
        shape = (*self.limit.shape, self.most_drafts + 1)
        self.survival, self.verify_ms = np.zeros(shape), np.full(shape, np.inf)
        self.survival[:, :, 0] = 1.0
        for (verifier, drafter), curve in self._curves.items():
            limit = int(self.limit[verifier, drafter])
            if limit > 0:
                self.verify_ms[verifier, drafter, : limit + 1] = curve[1 : limit + 2]
                self.verify_ms[verifier, drafter] += self.inputs.models[verifier].host_ms
                self.survival[verifier, drafter, 1:] = self._survival(verifier, drafter)

    def _survival(self, verifier: int, drafter: int) -> Floats:
        """Return (D,): chance that the first k = 1.. drafts are all accepted; 0 beyond what is known of a block."""
        models = self.inputs.models
        if drafter < len(models):
            alpha = self.inputs.acceptance[verifier][drafter]
            return np.full(self.most_drafts, alpha).cumprod()
        known = self.inputs.blocks[drafter - len(models)].acceptance[models[verifier].name][: self.most_drafts]
        return np.concatenate((np.cumprod(known), np.zeros(self.most_drafts - len(known))))

    def _lay_finishes(self) -> None:
        target = self.target
        chains = np.flatnonzero(self.limit[target] > 0)
        names = self.inputs.node_names
        drafters = [names.index(tree.drafter) for tree in self.inputs.trees]
        self.finish_drafter = np.concatenate((chains, np.array(drafters, dtype=np.int64)))
        self.finish_tree = np.concatenate((np.full(len(chains), -1), np.arange(len(drafters))))
        shape = (len(self.finish_drafter), self.most_drafts + 1)
        self.finish_tokens, self.finish_ms = np.ones(shape), np.full(shape, np.inf)
        self.finish_tokens[: len(chains)] = self.survival[target, chains].cumsum(axis=1)
        self.finish_ms[: len(chains)] = self.verify_ms[target, chains]
        self.finish_limit = np.concatenate((self.limit[target, chains], np.zeros(len(drafters), dtype=np.int64)))
        for number, drafter in enumerate(drafters):
            self._lay_tree(len(chains) + number, number, drafter)

    def _lay_tree(self, finish: int, number: int, drafter: int) -> None:
        tree, model = self.inputs.trees[number], self.inputs.models[-1]
        curve = np.array(self._curves.get((self.target, drafter), model.forward_ms))
        fed = np.array(tree.verify_tokens[1:])
        if fed.max() >= len(curve):
            raise PlanError(
                f"tree {tree.name} feeds {fed.max()} tokens, the target was timed up to {len(curve) - 1}; "
                "time more tokens or give a smaller tree"
            )
        limit = min(len(fed), int(self.most_drawn[drafter]))
        self.finish_tokens[finish, 1 : limit + 1] = tree.expected_tokens[1 : limit + 1]
        self.finish_ms[finish, 1 : limit + 1] = curve[fed[:limit]] + model.host_ms + tree.host_ms
        self.finish_limit[finish] = limit

    def _finish(self, hierarchy: Hierarchy, drafter: int) -> int:
        trees = [None, *(tree.name for tree in self.inputs.trees)]
        for finish in self.finishes_of(drafter):
            if trees[int(self.finish_tree[finish]) + 1] == hierarchy.tree:
                return finish
        raise PlanError(
            f"{hierarchy.label}: the target cannot verify {self.inputs.node_names[drafter]} "
            f"{f'in {hierarchy.tree}' if hierarchy.tree else 'as a chain'}; give its acceptance, or another top level"
        )


def _edge_curves(inputs: HierarchyInputs) -> dict[tuple[int, int], tuple[float, ...]]:
    models, names = inputs.models, inputs.node_names
    curves = {(i, j): models[i].forward_ms for i in range(len(models)) for j in range(i)}
    for node, block in enumerate(inputs.blocks, start=len(models)):
        curves |= {(i, node): model.forward_ms for i, model in enumerate(models) if model.name in block.acceptance}
    for edge in inputs.edges:
        pair = (names.index(edge.verifier), names.index(edge.drafter))
        if pair not in curves:
            raise PlanError(f"{edge.verifier} cannot verify {edge.drafter}; list models smallest first")
        curves[pair] = edge.forward_ms
    return curves
