"""Policies that draft from the text itself, beside prompt lookup: suffix automaton, suffix tree, Cacheback.

What they draft is a function of the committed text alone, so they replay from the recorded texts and need no recording
of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...errors import PlanError
from ..text.frozen import FrozenTable
from ..text.lookup import Occurrence
from .chain import IndependentPolicy, require_at_least

HOPS = 3  # rows of a chance table: followers of the text's end, followers of those, and all further ones


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixPolicy(IndependentPolicy):
    """Copy what followed an earlier occurrence of the text's longest end that occurred before.

    Behind m tokens that agree stand min(length, factor * m + offset) copied ones. A copy that reaches the text's end
    goes on with what it has copied, as a text that goes round in circles does; the published code ends there.

    Attributes:
        length: most tokens to copy.
        factor, offset: of the bound by the length m of the match.
        min_match: shortest match that is copied from.
        occurrence: which earlier occurrence of the match; the published code takes the first.

    Source: Hu et al. 2024, SAM decoding, arXiv:2411.10666: min(40, 4 m + 1) tokens behind the first occurrence.
    """

    length: int = 40
    factor: int = 4
    offset: int = 1
    min_match: int = 1
    occurrence: Occurrence = "first"
    kind: Literal["suffix"] = "suffix"

    def __post_init__(self) -> None:
        require_at_least("suffix length", self.length, 1)
        require_at_least("suffix factor", self.factor, 0)
        require_at_least("suffix offset", self.offset, 0)
        require_at_least("suffix factor + offset", self.factor + self.offset, 1)
        require_at_least("suffix min_match", self.min_match, 1)

    @property
    def code(self) -> str:
        """Every setting in one line."""
        bound = f"{self.factor}m+{self.offset} up to {self.length}"
        return f"suffix of m >= {self.min_match} ({self.occurrence}), {bound}"

    @property
    def draft_forwards(self) -> int:
        """Drafter forwards per round: none, the text is the drafter."""
        return 0

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.length + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixTreePolicy(IndependentPolicy):
    """Draft the likeliest continuations of the text's end by how often each followed it before, as a tree.

    Every end of the text that occurred before, of m tokens, proposes a tree of its likeliest nodes, up to
    factor * m + offset of them; a node's probability is the product of count ratios along its path. The tree whose
    probabilities have the largest sum is verified; of equal ones that of the longest end.

    Attributes:
        nodes: most tokens of the tree, root included.
        factor, offset: of the bound by the length m of the match.
        least_chance: nodes less likely than this are left out.
        min_match: shortest end that proposes a tree; ends of more than 64 tokens count as 64.
        least_score: a tree whose probabilities have a smaller sum is left out: the paper's threshold, below which a
            model drafts.

    Source: Oliaro et al. 2024, SuffixDecoding, arXiv:2411.04975, and its published code: factor 1, offset 0, least
    probability 0.1.
    """

    nodes: int = 25
    factor: int = 1
    offset: int = 0
    least_chance: float = 0.1
    min_match: int = 1
    least_score: float = 0.0
    kind: Literal["suffix-tree"] = "suffix-tree"

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
        """Every setting in one line."""
        ends = f", m >= {self.min_match}" if self.min_match > 1 else ""
        score = f", score {self.least_score:.3g}" if self.least_score else ""
        bound = f"{self.factor}m+{self.offset}, chance {self.least_chance:.3g}"
        return f"suffix tree of {self.nodes}, {bound}{ends}{score}"

    @property
    def draft_forwards(self) -> int:
        """Drafter forwards per round: none, the text is the drafter."""
        return 0

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class CachebackPolicy(IndependentPolicy):
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
    def draft_forwards(self) -> int:
        """Drafter forwards per round: none, the text is the drafter."""
        return 0

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.nodes


def require_chance(name: str, value: float) -> None:
    """Raise PlanError where a number of a policy is no probability."""
    if not 0.0 <= value <= 1.0:
        raise PlanError(f"{name} is a probability, got {value}; take one of 0 to 1")
