"""TALON: a budget of nodes, filled layer by layer with what is near the best of its layer. Source: arXiv:2601.07353."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import PlanError
from .base import Bounds, Strategy, layer_widths, named_tree, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class TalonPolicy(Strategy):
    """Fill a budget of nodes layer by layer with all candidates not far below their layer's best.

    The paper has no `max_depth` and looks at a node's whole vocabulary, of which a tree of `nodes` has room for
    nodes - 1 - top_k children at most; `children` says how many are really looked at.

    Attributes:
        nodes: the budget N, root included; all of them are verified.
        gate: the threshold mu on path probability, relative to the layer's best, in (0, 1].
        top_k: the root's children K, taken without the gate.
        children: best next tokens looked at per node.
        max_depth: most layers of nodes, so most drafter forwards.

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
        """Every setting in one line: budget / gate / top k, and the depth cap where it bites."""
        depth = f", at most {self.max_depth} deep" if self.max_depth < self._deepest else ""
        return f"TALON {self.nodes}/{self.gate:.3g}/{self.top_k}{depth}"

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round: every layer adds a node at least."""
        return min(self.max_depth, self._deepest)

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.nodes

    @property
    def _deepest(self) -> int:
        return max(self.nodes - self.top_k, 1)

    @property
    def widths(self) -> tuple[int, ...]:
        """Most nodes of every drafter forward that can run."""
        return layer_widths(self.max_depth, self.children, self.most_expanded)

    @property
    def most_expanded(self) -> list[int]:
        """Most nodes that any tree expands of its layers 1, 2 and so on.

        Every layer before one has a node at least, and one place stays free.
        """
        most = list(range(self.nodes - 2, 0, -1))
        return [min(most[0], self.top_k), *most[1:]] if most else []

    @property
    def bounds(self) -> Bounds:
        """How deep, wide and large its trees can become."""
        width, depth = max(self.nodes - 1 - self.top_k, self.top_k), min(self.draft_forwards, self.nodes - 1)
        return Bounds(depth=depth, width=width, tokens=self.nodes)

    def draft_room(self, batch: int | None = None) -> int:
        """Return the smaller of two bounds: what every sequence may draft, and what the widest may in each layer.

        The layer that fills a tree is not expanded, so a tree of N expands N - 2 nodes at most, and its layer d + 1 at
        most what the root, top_k nodes and d - 1 layers of one node each leave of them. A layer is as wide as the
        widest sequence needs, so sequences together may draft more than one alone.
        """
        alone = self.nodes - 2
        layers = sum(max(alone - self.top_k - depth, 0) for depth in range(self.draft_forwards - 2))
        widest = min(self.top_k, alone) + layers if self.draft_forwards > 1 else 0
        return widest if batch is None else min(widest, batch * alone)

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure."""
        return min(self.top_k, self.nodes - 1)

    @property
    def compact_nodes(self) -> int:
        """Most nodes that are expanded."""
        return self.nodes - 2
