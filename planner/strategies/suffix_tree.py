"""The likeliest continuations of the text, as a tree. Source: Oliaro et al. 2024, SuffixDecoding, arXiv:2411.04975."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import PlanError
from .base import require_at_least, require_chance
from .text import TextPolicy, named_text_tree

MOST_GROWN = 64  # nodes of a tree that a GPU grows by itself; larger ones are the host's


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixTreePolicy(TextPolicy):
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

    complexity: ClassVar = 2
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
        """Every setting in one line."""
        ends = f", m >= {self.min_match}" if self.min_match > 1 else ""
        score = f", score {self.least_score:.3g}" if self.least_score else ""
        bound = f"{self.factor}m+{self.offset}, chance {self.least_chance:.3g}"
        return f"suffix tree of {self.nodes}, {bound}{ends}{score}"

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.nodes

    @property
    def copied_on_gpu(self) -> SuffixTreePolicy | None:
        """Itself, where it is small."""
        return self if self.nodes <= MOST_GROWN else None
