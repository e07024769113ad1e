"""The n-grams that followed the text's last ones before. Source: Ma et al. 2025, Cacheback, arXiv:2511.21699."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ..kernels.ranking import ranking_of
from ..records.costs import PlannedCosts
from ..records.crossfit import HALVES, Bools, folds_of, half_of
from ..records.frozen_table import FrozenTable
from ..records.recording import Recorded, Text
from ..records.results import PositionResults
from .base import require_at_least, require_chance
from .cacheback_sweep import BothTables, Pads, TableGrid, TreeLimits, count_chances, draft_tree, table_sweep, trie_of
from .cacheback_table import FollowerTable, fill, read, table_of
from .offers import Graded, Limits, Published
from .text import Judged, TextMemory, TextPolicy, TextTree, laid_out, named_text_tree, results_of_trees, room_for_tree

Floats = NDArray[np.float64]

TABLES = ((1, 1, 8), (1, 2, 4), (1, 3, 8), (2, 3, 4))  # tokens of a leader and of a follower, followers
NODES = (3, 4, 6, 8, 12, 16, 24, 33, 48)
CHANCES = (0.0, 0.05, 0.15, 0.35)

HOPS = 3  # rows of a chance table: followers of the text's end, followers of those, and all further ones


@dataclass(frozen=True, slots=True, kw_only=True)
class CachebackPolicy(TextPolicy):
    """Draft the n-grams that followed the text's last ones before, the most recent first, and their own followers.

    A table holds the `leaders` most recent leaders of `leader_tokens`, and the `followers` most recent n-grams of
    `follower_tokens` behind each. Followers of the text's end merge into a tree; behind each come its own followers.
    The likeliest nodes are verified.

    Attributes:
        nodes: most tokens of the tree, root included.
        least_chance: nodes less likely than this are left out.
        chances: chance that a follower's node is on the target's path, given its leader: by hop (`HOPS` of them),
            follower's rank and token's place; empty: 1 / (rank + 2). A frozen table's ranks follow the text's own.
        frozen: a table of a corpus, whose followers come behind the text's own.

    Source: Ma et al. 2025, Cacheback, arXiv:2511.21699: leaders of 1 token and followers of 3; table sizes unprinted.
    """

    leader_tokens: int = 1
    follower_tokens: int = 3
    leaders: int = 4096
    followers: int = 8
    nodes: int = 33
    max_depth: int = 6
    least_chance: float = 0.0
    chances: tuple[float, ...] = ()
    frozen: FrozenTable | None = None
    kind: Literal["cacheback"] = "cacheback"

    complexity: ClassVar = 2
    grid_place: ClassVar = 4
    names: ClassVar = {r"cacheback .*, (?P<nodes>\d+) nodes, .*": named_text_tree("Cacheback")}

    def __post_init__(self) -> None:
        for name in ("leader_tokens", "follower_tokens", "leaders", "followers", "max_depth"):
            require_at_least(f"Cacheback {name}", getattr(self, name), 1)
        require_at_least("Cacheback nodes", self.nodes, 2)
        require_chance("Cacheback least_chance", self.least_chance)
        for chance in self.chances:
            require_chance("a chance of Cacheback", chance)
        if self.frozen and (self.frozen.leader_tokens, self.frozen.follower_tokens) != (
            self.leader_tokens,
            self.follower_tokens,
        ):
            raise PlanError(
                f"Cacheback's frozen table has {self.frozen.leader_tokens}+{self.frozen.follower_tokens} tokens, the "
                f"text's own {self.leader_tokens}+{self.follower_tokens}; both must be alike"
            )
        ranks, places = self.ranks_and_places
        if self.chances and len(self.chances) != HOPS * ranks * places:
            raise PlanError(
                f"Cacheback needs {HOPS} x {ranks} x {places} chances by hop, rank and place, "
                f"got {len(self.chances)}; calibrate them again"
            )

    @property
    def ranks_and_places(self) -> tuple[int, int]:
        return self.followers + (self.frozen.followers if self.frozen else 0), self.follower_tokens

    @property
    def code(self) -> str:
        shape = f"{self.leader_tokens}+{self.follower_tokens}, {self.followers} followers"
        learned = "calibrated" if self.chances else "by recency"
        frozen = f", frozen {self.frozen.leaders} x {self.frozen.followers}" if self.frozen else ""
        return f"cacheback {shape}{frozen}, {self.nodes} nodes, chance {self.least_chance:.3g}, {learned}"

    @property
    def max_verify_tokens(self) -> int:
        return self.nodes

    @property
    def longest(self) -> int:
        return min(self.max_depth, self.nodes - 1)

    @property
    def memory_key(self) -> tuple[int, int, int, int, FrozenTable | None]:
        return self.leader_tokens, self.follower_tokens, self.leaders, self.followers, self.frozen

    def memory(self) -> CachebackText:
        return CachebackText(self)

    def results_in(self, texts: Sequence[Text]) -> PositionResults:
        ((_, results),) = cacheback_results(texts, [self])
        return results

    @classmethod
    def grid(cls, recorded: Recorded, limits: Limits) -> Iterator[Graded]:
        """Yield the trees of every table: by recency, and calibrated on each half of the texts."""
        texts = recorded.texts
        for table in _tables(limits.tables) if limits.most_tokens >= min(NODES) else ():
            for policy, results in cacheback_results(texts, _sized(table, limits.most_tokens)):
                yield Graded(policy, results)
            for half in range(HALVES):
                own = calibrated(table, texts, half_of(folds_of(len(texts))) == half)
                for policy, results in cacheback_results(texts, _sized(own, limits.most_tokens)):
                    yield Graded(policy, results, half)

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        return [PUBLISHED]

    @classmethod
    def probes(cls, most_tokens: int) -> list[CachebackPolicy]:
        return [cls(nodes=nodes) for nodes in (6, min(24, most_tokens))]


def _tables(frozen: Sequence[FrozenTable]) -> list[CachebackPolicy]:
    own = [CachebackPolicy(leader_tokens=leader, follower_tokens=tokens, followers=n) for leader, tokens, n in TABLES]
    both = [
        CachebackPolicy(leader_tokens=one.leader_tokens, follower_tokens=one.follower_tokens, frozen=one)
        for one in frozen
    ]
    return own + both


def _sized(table: CachebackPolicy, most_tokens: int) -> list[CachebackPolicy]:
    sizes = [nodes for nodes in NODES if nodes <= most_tokens]
    return [replace(table, nodes=nodes, least_chance=chance) for nodes, chance in product(sizes, CHANCES)]


class CachebackText(TextMemory):
    """A growing text and the table its committed tokens fill; looking up followers changes no recency."""

    def __init__(self, policy: CachebackPolicy) -> None:
        self.length = 0  # tokens read
        self._tables = tables_of(policy)
        self._trie = trie_of(self._tables)

    def draft(self, policy: TextPolicy, fresh: Sequence[int] = (), held: Sequence[int] = ()) -> TextTree:
        """Append tokens, O(followers) each; return the tree behind the text, for a policy of the same tables."""
        assert isinstance(policy, CachebackPolicy) and not held, "a table is asked about committed text"
        read(self._tables.own, np.array(fresh, dtype=np.int64))
        self.length += len(fresh)
        most = policy.nodes - 1
        tree, places = room_for_tree(most), np.empty(most, dtype=np.int64)
        limits = TreeLimits(most, policy.max_depth, policy.least_chance)
        nodes = draft_tree(self._tables, chances_of(policy), limits, Pads(ranking_of(most), self._trie), places, tree)
        return tree[:, : nodes + 1]


def tables_of(policy: CachebackPolicy) -> BothTables:
    """Return a policy's tables: an empty one for the text, and its frozen one."""
    tokens = policy.leader_tokens, policy.follower_tokens
    frozen = no_table(*tokens) if policy.frozen is None else unpacked_table(policy.frozen)
    return BothTables(own=table_of(*tokens, policy.leaders, policy.followers), frozen=frozen)


@lru_cache(maxsize=16)
def unpacked_table(frozen: FrozenTable) -> FollowerTable:
    """Return a read-only table to look followers up in."""
    made = table_of(frozen.leader_tokens, frozen.follower_tokens, frozen.leaders, frozen.followers)
    leaders, counts, followers = frozen.entries()
    fill(made, leaders, counts, followers)
    return made


def no_table(leader_tokens: int, follower_tokens: int) -> FollowerTable:
    """Return a table without leaders."""
    return table_of(leader_tokens, follower_tokens, 1, 0)


def chances_of(policy: CachebackPolicy) -> Floats:
    """Return (hops, followers, follower_tokens): chance of each node that a follower adds, given its leader.

    The text's own followers come first, then those of the frozen table.
    """
    shape = HOPS, *policy.ranks_and_places
    if policy.chances:
        return np.array(policy.chances).reshape(shape)
    ranks = np.arange(shape[1])
    ranks[policy.followers :] -= policy.followers
    return np.broadcast_to(1.0 / (2.0 + ranks)[None, :, None], shape).copy()


def cacheback_results(
    texts: Sequence[Text], policies: Sequence[CachebackPolicy]
) -> Iterator[tuple[CachebackPolicy, PositionResults]]:
    """Yield the results of policies that differ in nodes and least chance alone; the texts are read once."""
    first = policies[0]
    alike = [replace(one, nodes=first.nodes, least_chance=first.least_chance) for one in policies]
    assert set(alike) == {first}, "one growth tells about policies of one table, depth and calibration"
    laid, most = laid_out(texts), max(policy.nodes for policy in policies) - 1
    grid = TableGrid(np.array([one.nodes - 1 for one in policies]), np.array([one.least_chance for one in policies]))
    limits = TreeLimits(most, first.max_depth, float(grid.leasts.min()))
    accepted, sizes = np.zeros((2, len(policies), laid.rows), dtype=np.int16)  # of many trees at once
    tables = tables_of(first)
    work, is_right = Pads(ranking_of(most), trie_of(tables)), np.zeros(most, dtype=np.int64)
    table_sweep(laid.texts, tables, chances_of(first), limits, grid, work, is_right, Judged(accepted, sizes))
    yield from zip(policies, map(results_of_trees, accepted, sizes), strict=True)


def calibrated(policy: CachebackPolicy, texts: Sequence[Text], chosen: Bools) -> CachebackPolicy:
    """Return a policy with chances counted along the `chosen` (texts,) texts; one sighting counts as half."""
    laid = laid_out(texts)
    seen, right = np.zeros((2, HOPS, *policy.ranks_and_places))
    tables = tables_of(policy)
    count_chances(laid.texts, chosen, tables, trie_of(tables), seen, right)
    shares: Floats = right / (seen + 1.0)
    return replace(policy, chances=tuple(np.round(shares, 4).ravel().tolist()))


CACHEBACK = CachebackPolicy()  # leaders of 1 token, followers of 3; the sizes are ours
PUBLISHED = Published(
    name="Cacheback 1/3",
    source="arXiv:2511.21699, dynamic table; its sizes are ours",
    make=lambda: CACHEBACK,
    place=0,
)
