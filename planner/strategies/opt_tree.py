"""OPT-Tree: layers as wide as the tree, drafted while the best tree gains enough. Source: arXiv:2406.17276."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import PlanError
from .base import Bounds, Strategy, layer_widths, name_by, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class OptTreePolicy(Strategy):
    """Grow layers of the `nodes` best candidates while the best tree gains enough, verify that tree.

    E_d = sum of the `nodes` largest path probabilities among all candidates of layers 1 .. d
    layer d + 1 is drafted iff  E_d - E_(d-1) > least_gain  and  d < max_depth

    The published code looks at E one layer late; its last forward never reaches the tree and is left out here.

    Attributes:
        nodes: drafted nodes that are verified, the root not among them; also the most a layer expands.
        children: best next tokens looked at per node; the published code takes `nodes`.

    Source: Wang et al. 2024, arXiv:2406.17276, Algorithm 1.
    """

    nodes: int = 60
    least_gain: float = 0.5
    max_depth: int = 10
    children: int = 10
    kind: Literal["opt-tree"] = "opt-tree"

    complexity: ClassVar = 3
    hangs_on_scores: ClassVar = True
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
        """Every setting in one line: nodes / least gain / depth."""
        return f"OPT-Tree {self.nodes}/{self.least_gain:.3g}/{self.max_depth}"

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.nodes + 1

    @property
    def widths(self) -> tuple[int, ...]:
        """Most nodes of every drafter forward that can run: one per layer."""
        return layer_widths(self.max_depth, self.children, [self.nodes] * self.max_depth)

    @property
    def bounds(self) -> Bounds:
        """How deep, wide and large its trees can become."""
        return Bounds(depth=min(self.max_depth, self.nodes), width=self.nodes, tokens=self.nodes + 1)

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure."""
        return min(self.nodes, self.children)
