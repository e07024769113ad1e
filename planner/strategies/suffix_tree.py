"""The likeliest continuations of the text, as a tree. Source: Oliaro et al. 2024, SuffixDecoding, arXiv:2411.04975."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import numpy as np

from ...errors import PlanError
from ..kernels.arrays import Floats, Ints
from ..kernels.ranking import ranking_memory_of, ranking_of
from ..records.costs import PlannedCosts
from ..records.recording import Recorded, Text
from ..records.results import PositionResults
from .automaton import MOST_GROWN, AutomatonPolicy, memory_of
from .base import require_at_least, require_chance
from .offers import Graded, Limits, Published
from .suffix_tree_sweep import TreeGrid, grow_behind_all, read_and_grow, tree_sweep
from .text import Judged, Search, TextTree, laid_out, named_text_tree, results_of_trees

NODES = (3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 48)
BOUNDS = ((1, 0), (4, 1), (8, 0))
CHANCES = (0.02, 0.1, 0.2, 0.35, 0.5)
HYBRID_NODES = (4, 6, 10, 16, 25)
HYBRID_STARTS = ((1, 1.5), (1, 3.0), (1, 6.0), (2, 0.0))  # shortest match and least score of a tree that is copied
HYBRID_BOUND, HYBRID_CHANCE = (4, 1), 0.05
ENGINE_NODES = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixTreePolicy(AutomatonPolicy):
    """Draft the likeliest continuations of the text's end by how often each followed it before, as a tree.

    Every end that occurred before, of m tokens, proposes up to factor * m + offset likeliest nodes. A node's
    probability is the product of count ratios along its path. The tree with the largest sum of probabilities is
    verified; of equal ones that of the longest end.

    Attributes:
        nodes: most tokens of the tree, root included.
        least_chance: nodes less likely than this are left out.
        min_match: shortest end that proposes a tree; ends of more than 64 tokens count as 64.
        least_score: smallest sum of a tree's probabilities, the paper's threshold, below which a model drafts.

    Source: Oliaro et al. 2024, SuffixDecoding, arXiv:2411.04975; published code: factor 1, offset 0, probability 0.1.
    """

    nodes: int = 25
    factor: int = 1
    offset: int = 0
    least_chance: float = 0.1
    min_match: int = 1
    least_score: float = 0.0
    kind: Literal["suffix-tree"] = "suffix-tree"

    complexity: ClassVar = 2
    in_hybrids: ClassVar = True
    sweeps_together: ClassVar = True
    grid_place: ClassVar = 3
    names: ClassVar = {r"suffix tree of (?P<nodes>\d+), (?!.*, else ).*": named_text_tree("SuffixDecoding")}

    def __post_init__(self) -> None:
        require_at_least("suffix tree nodes", self.nodes, 2)
        require_at_least("suffix tree factor", self.factor, 0)
        require_at_least("suffix tree offset", self.offset, 0)
        require_at_least("suffix tree factor + offset", self.factor + self.offset, 1)
        require_chance("suffix tree least_chance", self.least_chance)
        require_at_least("suffix tree min_match", self.min_match, 1)
        if not 0.0 <= self.least_score < math.inf:
            raise PlanError(f"suffix tree least_score must be a number of at least 0, got {self.least_score}")

    @property
    def code(self) -> str:
        ends = f", m >= {self.min_match}" if self.min_match > 1 else ""
        score = f", score {self.least_score:.3g}" if self.least_score else ""
        bound = f"{self.factor}m+{self.offset}, chance {self.least_chance:.3g}"
        return f"suffix tree of {self.nodes}, {bound}{ends}{score}"

    @property
    def max_verify_tokens(self) -> int:
        return self.nodes

    @property
    def copied_on_gpu(self) -> SuffixTreePolicy | None:
        return self if self.nodes <= MOST_GROWN else None

    def copying(self) -> Callable[[Ints, Ints], TextTree]:
        (limits, leasts), (chances, lines) = limits_of(self), ranking_memory_of(self.nodes - 1)

        def grown(memory: Ints, placed: Ints) -> TextTree:
            tree = np.empty((3, self.nodes), dtype=np.int64)
            return tree[:, : read_and_grow(memory, placed, limits, leasts, chances, lines, tree)]

        return grown

    def searcher(self) -> Search:
        (limits, leasts), (chances, lines) = limits_of(self), ranking_memory_of(self.nodes - 1)

        def grown(memories: Ints, told: Ints, room: Ints, drafted: Ints) -> int:
            return grow_behind_all(memories, told, limits, leasts, chances, lines, room, drafted)

        return grown

    def results_in(self, texts: Sequence[Text]) -> PositionResults:
        ((_, results),) = suffix_tree_results(texts, [self])
        return results

    @classmethod
    def sweep(cls, recorded: Recorded, variants: Sequence[SuffixTreePolicy]) -> Iterator[Graded]:
        for policy, results in suffix_tree_results(recorded.texts, variants) if variants else ():
            yield Graded(policy, results)

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        sizes = [nodes for nodes in NODES if nodes <= limits.most_tokens]
        trees = [
            cls(nodes=nodes, factor=factor, offset=offset, least_chance=chance)
            for nodes, (factor, offset), chance in product(sizes, BOUNDS, CHANCES)
        ]
        return cls.sweep(recorded, trees)

    @classmethod
    def beside_models(cls, most_tokens: int) -> list[SuffixTreePolicy]:
        factor, offset = HYBRID_BOUND
        return [
            cls(
                nodes=nodes,
                factor=factor,
                offset=offset,
                least_chance=HYBRID_CHANCE,
                min_match=match,
                least_score=score,
            )
            for nodes, (match, score) in product(HYBRID_NODES, HYBRID_STARTS)
            if nodes <= most_tokens and score < nodes - 1  # which is the most that its probabilities add up to
        ]

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        return [PUBLISHED]

    @classmethod
    def engine_grid(cls) -> list[SuffixTreePolicy]:
        return [
            cls(nodes=nodes, factor=factor, offset=0, least_chance=chance)
            for nodes in ENGINE_NODES
            for factor in (1, 2)
            for chance in CHANCES
        ]

    @classmethod
    def probes(cls, most_tokens: int) -> list[SuffixTreePolicy]:
        small, large = cls(nodes=6, factor=8, least_chance=0.0), min(24, most_tokens)
        return [small, cls(nodes=large, factor=24, least_chance=0.0)]


def limits_of(policy: SuffixTreePolicy) -> tuple[Ints, Floats]:
    """Return a tree's limits as `read_and_grow` takes them: whole numbers, and the least chance and score."""
    limits = np.array([policy.nodes - 1, policy.factor, policy.offset, policy.min_match], dtype=np.int64)
    return limits, np.array([policy.least_chance, policy.least_score])


def suffix_tree_results(
    texts: Sequence[Text], policies: Sequence[SuffixTreePolicy]
) -> Iterator[tuple[SuffixTreePolicy, PositionResults]]:
    """Yield every policy's results; the texts are read once and one tree is grown behind each match."""
    laid, most = laid_out(texts), max(policy.nodes for policy in policies) - 1
    grid = TreeGrid(
        nodes=np.array([one.nodes - 1 for one in policies]),
        factors=np.array([one.factor for one in policies]),
        offsets=np.array([one.offset for one in policies]),
        matches=np.array([one.min_match for one in policies]),
        leasts=np.array([one.least_chance for one in policies]),
        scores=np.array([one.least_score for one in policies]),
    )
    accepted, sizes = np.zeros((2, len(policies), laid.rows), dtype=np.int16)  # of many trees at once
    room = np.zeros(most, dtype=np.int64)
    tree_sweep(laid.texts, memory_of(laid.longest), grid, ranking_of(most), room, Judged(accepted, sizes))
    yield from zip(policies, map(results_of_trees, accepted, sizes), strict=True)


SUFFIX_DECODING = SuffixTreePolicy(nodes=25, factor=1, offset=0, least_chance=0.1)  # the size is ours
PUBLISHED = Published(
    name="SuffixDecoding 1/0.1",
    source="arXiv:2411.04975, published code, tree of the request",
    make=lambda: SUFFIX_DECODING,
    place=0,
)
