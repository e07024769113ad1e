"""OPT-Tree: layers as wide as the tree, drafted while the best tree gains enough. Source: arXiv:2406.17276."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Literal

import numpy as np

from ...errors import PlanError
from ..records.candidates import NOTHING, Candidates
from ..records.costs import PlannedCosts
from ..records.draft import Growth
from ..records.knobs import Knobs, Range
from ..records.ops import Ops
from ..records.recording import Recorded, Recording
from ..records.results import PositionResults
from .base import DEEPEST, MOST_CHILDREN, Bounds, Strategy, Trees, layer_widths, require_at_least
from .grown import grown_results
from .naming import name_by
from .offers import Graded, Level, Limits, Published, Space
from .opt_tree_sweep import BestTrees, opt_tree_sweep

PAPER = "Wang et al. 2024, arXiv:2406.17276, published code"
ALL_CHILDREN = 60  # as many as nodes
NODES = (4, 8, 12, 16, 24, 32)
GAINS = (0.1, 0.2, 0.35, 0.5)
DEPTHS = (3, 5, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptTreePolicy(Strategy):
    """Grow layers of the `nodes` best candidates while the best tree gains enough, verify that tree.

    E_d = sum of the `nodes` largest path probabilities among all candidates of layers 1 .. d
    layer d + 1 is drafted iff  E_d - E_(d-1) > least_gain  and  d < max_depth

    The published code looks at E one layer late; its last forward never reaches the tree and is left out here. Its
    `children` per node are `nodes`; here they may be fewer. `nodes` leaves out the root and bounds each layer, too.

    Source: Wang et al. 2024, arXiv:2406.17276, Algorithm 1.
    """

    nodes: int = 60
    least_gain: float = 0.5
    max_depth: int = 10
    children: int = 10
    kind: Literal["opt-tree"] = "opt-tree"

    complexity: ClassVar = 3
    hangs_on_scores: ClassVar = True
    grid_place: ClassVar = 10
    search_place: ClassVar = 2
    names: ClassVar = {
        r"OPT-Tree (?P<drafted>\d+)/\S+/\d+": lambda found, drafter: (
            name_by(f"tree of {int(found['drafted']) + 1} nodes", drafter) + " (OPT-Tree)"
        )
    }

    def __post_init__(self) -> None:
        require_at_least("OPT-Tree nodes", self.nodes, 1)
        require_at_least("OPT-Tree max_depth", self.max_depth, 1)
        require_at_least("OPT-Tree children", self.children, 1)
        if not math.isfinite(self.least_gain):
            raise PlanError(f"OPT-Tree's least gain must be finite, got {self.least_gain}; the published one is 0.5")

    @property
    def code(self) -> str:
        return f"OPT-Tree {self.nodes}/{self.least_gain:.3g}/{self.max_depth}"

    @property
    def max_verify_tokens(self) -> int:
        return self.nodes + 1

    @property
    def widths(self) -> tuple[int, ...]:
        return layer_widths(self.max_depth, self.children, [self.nodes] * self.max_depth)

    @property
    def bounds(self) -> Bounds:
        return Bounds(depth=min(self.max_depth, self.nodes), width=self.nodes, tokens=self.nodes + 1)

    @property
    def sure_width(self) -> int:
        return min(self.nodes, self.children)

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        """Return the root and the best candidates. Each sequence stops by itself; a forward serves those that go on.

        E is added one by one, best first: padding changes nothing, so no sequence's sum depends on its neighbours.
        """
        tree = yield from Candidates.below_root(ops, self.children)
        picks = top = ops.best(tree.scores, self.nodes)
        best = scores = ops.take(tree.scores, top)
        is_open, gained = ops.rows((0,)) == 0, 0.0
        while True:
            before, gained = gained, ops.exp(best).cumsum(axis=1)[:, -1:]
            is_open = is_open & (gained - before > self.least_gain)
            wanted = (scores > NOTHING) & is_open
            if tree.depth == self.max_depth or ops.stopped(wanted):
                return tree.tree(ops.marked(picks, best > NOTHING, tree.count), self.nodes)
            yield from tree.expand(ops.used(ops.where(wanted, top, -1)))
            top = ops.best(tree.scores, self.nodes)
            scores = ops.take(tree.scores, top)
            both, places = ops.concat((best, scores)), ops.concat((picks, top + tree.start))
            order = ops.best(both, self.nodes)
            best, picks = ops.take(both, order), ops.take(places, order)

    def results(self, recorded: Recorded) -> PositionResults:
        ((_, results),) = opt_tree_results(recorded.drafted, [self])
        return results

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        children = min(MOST_CHILDREN, recorded.drafted.children)
        trees = [
            cls(nodes=nodes, least_gain=gain, max_depth=depth, children=min(nodes, children))
            for nodes in NODES
            if nodes < limits.most_tokens
            for gain in GAINS
            for depth in DEPTHS
        ]
        for policy, results in opt_tree_results(recorded.drafted, trees):
            yield Graded(policy, results)

    @classmethod
    def recorded_at(cls, level: Level) -> list[OptTreePolicy]:
        return [cls(children=children) for children in (MOST_CHILDREN, ALL_CHILDREN)] if level == "full" else []

    @classmethod
    def space(cls, children: int, most_tokens: int) -> Space | None:
        if most_tokens < 3:
            return None
        looked_at = min(MOST_CHILDREN, children)

        def policy(knobs: Knobs) -> OptTreePolicy:
            return cls(
                nodes=int(knobs["nodes"]),
                least_gain=knobs["least_gain"],
                max_depth=int(knobs["max_depth"]),
                children=min(looked_at, int(knobs["nodes"])),
            )

        def knobs(policy: OptTreePolicy) -> dict[str, float]:
            return {"nodes": policy.nodes, "least_gain": policy.least_gain, "max_depth": policy.max_depth}

        ranges = {
            "nodes": Range(low=2, high=most_tokens - 1, is_whole=True),
            "least_gain": Range(low=0.02, high=1.0),
            "max_depth": Range(low=1, high=DEEPEST, is_whole=True),
        }
        return Space(kind="opt-tree", ranges=ranges, policy=policy, knobs=knobs)

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        if drafter is None:
            return []
        found = [Published(name="OPT-Tree 60/0.5/10", source=PAPER, make=opt_tree, place=5)]
        if children < ALL_CHILDREN:
            name = f"OPT-Tree over {children} children"
            found.append(Published(name=name, source=PAPER, make=lambda: opt_tree(children), place=8))
        return found

    @classmethod
    def probes(cls, most_tokens: int) -> list[OptTreePolicy]:
        return [cls(nodes=min(24, most_tokens) - 1, least_gain=-1.0, max_depth=5, children=6)]


def opt_tree_results(
    recording: Recording, policies: Sequence[OptTreePolicy]
) -> Iterator[tuple[OptTreePolicy, PositionResults]]:
    """Yield the results of OPT-Trees; those of one number of nodes and children come from one pass.

    A position is censored where a child of an unrecorded expansion could be among the best candidates. The widths are
    those of layers that have all their candidates. PlanError if the trace has too few children.
    """
    if not recording.is_ordered:
        yield from ((policy, grown_results(policy, recording)) for policy in policies)
        return
    alike: dict[tuple[int, int], list[OptTreePolicy]] = {}
    for policy in policies:
        alike.setdefault((policy.nodes, policy.children), []).append(policy)
    for group in alike.values():
        yield from _opt_trees(recording, group)


def _opt_trees(recording: Recording, policies: list[OptTreePolicy]) -> Iterator[tuple[OptTreePolicy, PositionResults]]:
    nodes, children = policies[0].nodes, policies[0].children
    recording.require_children(children)
    shape = (len(recording.roots), max(policy.max_depth for policy in policies))
    trees = BestTrees(
        expected=np.zeros(shape),
        accepted=np.zeros(shape, dtype=np.uint8),
        drafted=np.zeros(shape, dtype=np.int32),
        is_untold=np.zeros(shape, dtype=np.bool_),
    )
    opt_tree_sweep(recording.expansions, recording.survivals(), nodes, children, trees)
    gains = np.diff(trees.expected, axis=1, prepend=0.0)
    widths = list(accumulate(range(1, shape[1]), lambda width, _: min(nodes, width * children), initial=1))
    for policy in policies:
        pays = np.logical_and.accumulate(gains[:, : policy.max_depth - 1] > policy.least_gain, axis=1)
        last = (np.arange(shape[0]), pays.sum(axis=1))  # the layer each tree ends with
        yield (
            policy,
            PositionResults(
                accepted=trees.accepted[last].astype(np.int64),
                sizes=1 + trees.drafted[last].astype(np.int64),
                censored=trees.is_untold[last],
                widths=np.where(np.arange(policy.max_depth) <= last[1][:, None], widths[: policy.max_depth], 0),
            ),
        )


def opt_tree(children: int = ALL_CHILDREN) -> OptTreePolicy:
    """Return OPT-Tree 60/0.5/10; it is 9 deep, as its published code's 10th layer never reaches the tree."""
    return OptTreePolicy(nodes=ALL_CHILDREN, least_gain=0.5, max_depth=9, children=children)
