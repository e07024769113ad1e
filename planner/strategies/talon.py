"""TALON: a budget of nodes, filled layer by layer with what is near the best of its layer. Source: arXiv:2601.07353."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ...errors import PlanError
from ..records.candidates import NOTHING, Candidates
from ..records.costs import PlannedCosts
from ..records.draft import Array, Growth
from ..records.knobs import Knobs, Range
from ..records.ops import Ops
from ..records.recording import Recorded, Recording
from ..records.results import PositionResults, empty_results
from .base import DEEPEST, MOST_CHILDREN, Bounds, Strategy, Trees, layer_widths, require_at_least
from .grown import grown_results
from .naming import named_tree
from .offers import Graded, Level, Limits, Published, Space
from .talon_sweep import NOT_THERE, Gate, Layers, talon_budget, talon_sweep

PAPER = "Liu et al. 2026, arXiv:2601.07353, defaults of Sec. 4"
ROOT_CHILDREN = 10
ALL_CHILDREN = 49  # the paper looks at the whole vocabulary; behind 1 + 10 nodes 49 more fit into 60
GATES = (0.01, 0.03, 0.08, 0.2, 0.5)
WIDTHS = (2, 4, 6, 10)
NODES = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 60, 80, 100, 128)
DEPTHS = (1, 2, 3, 4, 5, 6, 8, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class TalonPolicy(Strategy):
    """Fill a budget of nodes layer by layer with all candidates not far below their layer's best.

    The paper has no `max_depth` and looks at a node's whole vocabulary, of which a tree of `nodes` has room for
    nodes - 1 - top_k children at most.

    Attributes:
        nodes: the budget N, root included; all of them are verified.
        gate: the threshold mu on path probability, relative to the layer's best, in (0, 1].
        top_k: the root's children K, taken without the gate.

    Source: Liu et al. 2026, arXiv:2601.07353, Algorithm 2.
    """

    nodes: int = 60
    gate: float = 0.03
    top_k: int = 10
    children: int = 10
    max_depth: int = 50
    kind: Literal["talon"] = "talon"

    complexity: ClassVar = 3
    hangs_on_scores: ClassVar = True
    grid_place: ClassVar = 9
    search_place: ClassVar = 1
    names: ClassVar = {r"TALON (?P<nodes>\d+)/.*": named_tree("TALON")}

    def __post_init__(self) -> None:
        require_at_least("TALON nodes", self.nodes, 2)
        require_at_least("TALON top_k", self.top_k, 1)
        require_at_least("TALON children", self.children, self.top_k)
        require_at_least("TALON max_depth", self.max_depth, 1)
        if not 0.0 < self.gate <= 1.0:
            raise PlanError(f"TALON's gate must be in (0, 1], got {self.gate}; 1 keeps only a layer's best")

    @property
    def code(self) -> str:
        depth = f", at most {self.max_depth} deep" if self.max_depth < self._deepest else ""
        return f"TALON {self.nodes}/{self.gate:.3g}/{self.top_k}{depth}"

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round: every layer adds a node at least."""
        return min(self.max_depth, self._deepest)

    @property
    def max_verify_tokens(self) -> int:
        return self.nodes

    @property
    def _deepest(self) -> int:
        return max(self.nodes - self.top_k, 1)

    @property
    def widths(self) -> tuple[int, ...]:
        return layer_widths(self.max_depth, self.children, self.most_expanded)

    @property
    def most_expanded(self) -> list[int]:
        """Most nodes expanded of layers 1, 2, ...: earlier layers have a node at least, and one place stays free."""
        most = list(range(self.nodes - 2, 0, -1))
        return [min(most[0], self.top_k), *most[1:]] if most else []

    @property
    def bounds(self) -> Bounds:
        width, depth = max(self.nodes - 1 - self.top_k, self.top_k), min(self.draft_forwards, self.nodes - 1)
        return Bounds(depth=depth, width=width, tokens=self.nodes)

    def draft_room(self, batch: int | None = None) -> int:
        """Return the smaller of two bounds: what every sequence may draft, and what the widest may in each layer.

        The layer that fills a tree is not expanded, so a tree of N expands N - 2 nodes at most, and its layer d + 1
        what the root, top_k nodes and d - 1 layers of one node each leave. A layer is as wide as the widest sequence
        needs, so sequences together may draft more than one alone.
        """
        alone = self.nodes - 2
        layers = sum(max(alone - self.top_k - depth, 0) for depth in range(self.draft_forwards - 2))
        widest = min(self.top_k, alone) + layers if self.draft_forwards > 1 else 0
        return widest if batch is None else min(widest, batch * alone)

    @property
    def sure_width(self) -> int:
        return min(self.top_k, self.nodes - 1)

    @property
    def compact_nodes(self) -> int:
        return self.nodes - 2

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        """Return trees of `self.nodes` nodes, fewer where depth or recorded candidates end before.

        layer 1     = the root's top_k children
        layer d + 1 = candidates whose path probability is at least gate * (the layer's best)
        the layer that would exceed the budget keeps only its best; then the tree is full

        The filling layer is not expanded. Forwards are as wide and as many as the batch's largest sequence needs.
        """
        tree = yield from Candidates.below_root(ops, self.children)
        room, chosen, most = ops.rows((self.nodes - 1,)), [], self.most_expanded
        while True:
            ranked = ops.best(tree.scores, self.nodes - tree.depth)
            fits = self._fitting(ops, tree, ranked, room)
            chosen.append(ops.marked(ranked, fits, tree.scores.shape[1]))
            room = room - fits.sum(axis=1)[:, None]
            goes_on = fits & (room > 0)
            if tree.depth == self.max_depth or tree.depth > len(most) or ops.stopped(goes_on):
                return tree.tree(ops.concat(chosen), self.nodes - 1)
            yield from tree.expand(ops.used(ops.where(goes_on, ranked, -1)[:, : most[tree.depth - 1]]))

    def _fitting(self, ops: Ops[Trees], tree: Candidates[Trees], ranked: Array, room: Array) -> Array:
        """Return (batch, ranked): which of the ranked candidates join the tree; always a prefix of them."""
        places, best = ops.row(range(ranked.shape[1])), ops.double(ops.take(tree.scores, ranked))
        passes = places < self.top_k if tree.depth == 1 else best >= best[:, :1] + math.log(self.gate)
        return passes & (best > NOTHING) & (places < room)

    def results(self, recorded: Recorded) -> PositionResults:
        tree = (self.gate, self.top_k, self.children)
        ((_, results),) = talon_results(recorded.drafted, *tree, [self.nodes], [self.max_depth])
        return results

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        children = min(MOST_CHILDREN, recorded.drafted.children)
        nodes = [count for count in NODES if count <= limits.most_tokens]
        for top_k in WIDTHS if nodes else ():
            for gate in GATES if top_k <= children else ():
                for policy, results in talon_results(recorded.drafted, gate, top_k, children, nodes, DEPTHS):
                    yield Graded(policy, results)

    @classmethod
    def recorded_at(cls, level: Level) -> list[TalonPolicy]:
        widths = {"standard": [ROOT_CHILDREN], "full": [ROOT_CHILDREN, ALL_CHILDREN]}.get(level, [])
        return [talon(children) for children in widths]

    @classmethod
    def space(cls, children: int, most_tokens: int) -> Space | None:
        if most_tokens < 3:
            return None
        looked_at = min(MOST_CHILDREN, children)

        def policy(knobs: Knobs) -> TalonPolicy:
            return cls(
                nodes=int(knobs["nodes"]),
                gate=knobs["gate"],
                top_k=int(knobs["top_k"]),
                children=looked_at,
                max_depth=int(knobs["max_depth"]),
            )

        def knobs(policy: TalonPolicy) -> dict[str, float]:
            return {"nodes": policy.nodes, "gate": policy.gate, "top_k": policy.top_k, "max_depth": policy.max_depth}

        ranges = {
            "nodes": Range(low=3, high=most_tokens, is_whole=True),
            "gate": Range(low=0.003, high=1.0),
            "top_k": Range(low=1, high=looked_at, is_whole=True),
            "max_depth": Range(low=1, high=DEEPEST, is_whole=True),
        }
        return Space(kind="talon", ranges=ranges, policy=policy, knobs=knobs)

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        if drafter is None:
            return []
        found = [Published(name="TALON 60/0.03/10", source=PAPER, make=talon, place=4)]
        if ROOT_CHILDREN <= children < ALL_CHILDREN:
            name = f"TALON over {children} children"
            found.append(Published(name=name, source=PAPER, make=lambda: talon(children), place=7))
        return found

    @classmethod
    def probes(cls, most_tokens: int) -> list[TalonPolicy]:
        return [cls(nodes=min(24, most_tokens), top_k=6, children=6, max_depth=5)]


def talon_results(
    recording: Recording, gate: float, top_k: int, children: int, nodes: Sequence[int], max_depths: Sequence[int]
) -> Iterator[tuple[TalonPolicy, PositionResults]]:
    """Yield the results of every budget and depth of one gate, all from one tree of the largest budget.

    A position is censored where a child of an unrecorded expansion could pass the gate and find room. PlanError if the
    trace has too few children.
    """
    policies = [
        TalonPolicy(nodes=budget, gate=gate, top_k=top_k, children=children, max_depth=depth)
        for depth in max_depths
        for budget in nodes
    ]
    if not recording.is_ordered:
        yield from ((policy, grown_results(policy, recording)) for policy in policies)
        return
    recording.require_children(children)
    shape = (len(recording.roots), max(policy.draft_forwards for policy in policies))
    layers = Layers(
        added=np.zeros(shape, dtype=np.int32),
        own_places=np.full(shape, NOT_THERE, dtype=np.int32),
        told=np.empty(shape, dtype=np.int32),
    )
    deepest = talon_sweep(recording.expansions, Gate(math.log(gate), top_k, children), max(nodes) - 1, layers)
    for policy in policies:
        results = empty_results(recording, min(deepest, policy.max_depth))
        talon_budget(layers, policy.nodes - 1, results.arrays)
        yield policy, results


def talon(children: int = ALL_CHILDREN) -> TalonPolicy:
    """Return TALON 60/0.03/10 over so many children of a node."""
    return TalonPolicy(nodes=60, gate=0.03, top_k=ROOT_CHILDREN, children=children, max_depth=50)
