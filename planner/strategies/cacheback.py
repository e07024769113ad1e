"""The n-grams that followed the text's last ones before. Source: Ma et al. 2025, Cacheback, arXiv:2511.21699."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import PlanError
from ..text.frozen import FrozenTable
from .base import require_at_least, require_chance
from .text import TextPolicy, named_text_tree

HOPS = 3  # rows of a chance table: followers of the text's end, followers of those, and all further ones


@dataclass(frozen=True, slots=True, kw_only=True)
class CachebackPolicy(TextPolicy):
    """Draft the n-grams that followed the text's last ones before, the most recent ones first, and theirs behind them.

    A table holds, for the `leaders` most recently seen leaders of `leader_tokens`, the `followers` most recently seen
    n-grams of `follower_tokens` behind each. The followers of the text's end are merged into a tree, and behind the end
    of each follower stand its own followers. Nodes are verified by how likely they are.

    Attributes:
        nodes: most tokens of the tree, root included.
        max_depth: most drafted tokens on one path.
        least_chance: nodes less likely than this are left out.
        chances: of the node that a follower adds to the tree to be on the target's path, given that the leader is, by
            hop (`HOPS` of them), by the follower's rank and by its token's place; empty: 1 / (rank + 2). The ranks of a
            frozen table come behind those of the text's own.
        frozen: a table of a corpus, whose followers come behind those of the text's own table.

    Source: Ma et al. 2025, Cacheback, arXiv:2511.21699: leaders of 1 token and followers of 3. The sizes of the table
    are not printed.
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
        """Followers of a leader in both tables, and tokens of each."""
        return self.followers + (self.frozen.followers if self.frozen else 0), self.follower_tokens

    @property
    def code(self) -> str:
        """Every setting in one line."""
        shape = f"{self.leader_tokens}+{self.follower_tokens}, {self.followers} followers"
        learned = "calibrated" if self.chances else "by recency"
        frozen = f", frozen {self.frozen.leaders} x {self.frozen.followers}" if self.frozen else ""
        return f"cacheback {shape}{frozen}, {self.nodes} nodes, chance {self.least_chance:.3g}, {learned}"

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.nodes

    @property
    def longest(self) -> int:
        """Most drafted tokens on one path."""
        return min(self.max_depth, self.nodes - 1)
