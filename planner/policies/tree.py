"""Policies that draft a tree: of one shape, or grown after the drafter's confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import PlanError
from ...profiler.records.calibration import SurvivalCurve
from ..growth.tree import TokenTree
from .chain import IndependentPolicy, require_at_least
from .labels import LabelledPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticPolicy(IndependentPolicy):
    """Draft the same tree of ranks at every position."""

    tree: TokenTree
    kind: Literal["static"] = "static"

    def __post_init__(self) -> None:
        require_at_least("static tree size", self.tree.size, 2)

    @property
    def code(self) -> str:
        """Every setting in one line."""
        return f"static tree of {self.tree.size}, depth {self.tree.depth}"

    @property
    def draft_forwards(self) -> int:
        """Drafter forwards per round: one per level of the tree."""
        return self.tree.depth

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included."""
        return self.tree.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2Policy(IndependentPolicy):
    """Grow a beam of `top_k` nodes `depth` times below the first layer, verify the best ones.

    Defaults are those of EAGLE-3's published loader; `verify_tokens` counts the root.
    """

    verify_tokens: int = 60
    depth: int = 7
    top_k: int = 10
    kind: Literal["eagle2"] = "eagle2"

    def __post_init__(self) -> None:
        require_at_least("EAGLE-2 verify_tokens", self.verify_tokens, 2)
        require_at_least("EAGLE-2 depth", self.depth, 0)
        require_at_least("EAGLE-2 top_k", self.top_k, 1)

    @property
    def code(self) -> str:
        """Every setting in one line: verified tokens / depth / top k."""
        return f"EAGLE-2 {self.verify_tokens}/{self.depth}/{self.top_k}"

    @property
    def draft_forwards(self) -> int:
        """Drafter forwards per round: the root's own and one per further layer."""
        return self.depth + 1

    @property
    def max_verify_tokens(self) -> int:
        """Tokens one verify feeds per sequence, root included; fewer when candidates run out."""
        candidates = self.top_k + self.depth * self.top_k**2
        return min(self.verify_tokens, candidates + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TalonPolicy(IndependentPolicy):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OptTreePolicy(IndependentPolicy):
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
    def draft_forwards(self) -> int:
        """Most drafter forwards per round: one per layer."""
        return self.max_depth

    @property
    def max_verify_tokens(self) -> int:
        """Most tokens one verify feeds per sequence, root included."""
        return self.nodes + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CastPolicy(LabelledPolicy):
    """Choose width, depth and size of the tree from confidence and measured cost.

    Attributes:
        breadth, depth, rerank: the thresholds C_1, C_2, C_3 in units of utility per normalised
            cost, >= 0; the unit of cost is one plain decoding step, `verify_cost_ms[1]`.
        max_width: most nodes expanded per layer, and most children taken of each.
        max_depth: most layers of nodes, so most drafter forwards.
        max_verify_tokens: most tokens one verify feeds per sequence, root included.
        ratio_window: how many ratios between layers the depth rule averages (the paper's R).
        draft_cost_ms: drafter step by width, index = nodes per sequence, entry 0 = 0.0.
        verify_cost_ms: target step by tokens fed per sequence, root included, entry 0 = 0.0;
            already the cheapest padded shape, so entry 1 is plain decoding.
        survival: probability that a candidate lies on the target's own path, by its path log-probability, one curve
            per depth, the last one for all deeper; utility is the sum of these. Where there are none, utility is the
            sum of the drafter's own path probabilities, as in the paper. The order of candidates is the drafter's.
    """

    breadth: float
    depth: float
    rerank: float
    max_width: int
    max_depth: int
    max_verify_tokens: int
    ratio_window: int
    draft_cost_ms: tuple[float, ...]
    verify_cost_ms: tuple[float, ...]
    survival: tuple[SurvivalCurve, ...] = ()
    kind: Literal["cast"] = "cast"

    def __post_init__(self) -> None:
        require_at_least("CAST max_width", self.max_width, 1)
        require_at_least("CAST max_depth", self.max_depth, 1)
        require_at_least("CAST max_verify_tokens", self.max_verify_tokens, 2)
        require_at_least("CAST ratio_window", self.ratio_window, 1)
        thresholds = (self.breadth, self.depth, self.rerank)
        if not all(math.isfinite(threshold) and threshold >= 0 for threshold in thresholds):
            raise PlanError(f"CAST thresholds must be finite and at least 0, got {thresholds}; pass 0 to prune nothing")
        _require_costs("draft_cost_ms", self.draft_cost_ms, self.max_width)
        _require_costs("verify_cost_ms", self.verify_cost_ms, self.max_verify_tokens)

    @property
    def code(self) -> str:
        """Every setting in one line: the three thresholds and the size cap."""
        calibrated = "calibrated, " if self.survival else ""
        thresholds = f"{self.breadth:.3g}/{self.depth:.3g}/{self.rerank:.3g}"
        return f"CAST {thresholds}, {calibrated}at most {self.max_verify_tokens}"

    @property
    def draft_forwards(self) -> int:
        """Most drafter forwards per round: one per layer."""
        return self.max_depth

    def is_coupled(self, batch: int) -> bool:
        """Say whether sequences share widths and size: always when there are several."""
        return batch > 1


def _require_costs(name: str, costs_ms: Sequence[float], up_to: int) -> None:
    if len(costs_ms) <= up_to:
        raise PlanError(f"CAST {name} must reach {up_to} tokens, got {len(costs_ms) - 1}; measure or cap that far")
    if costs_ms[0] != 0.0 or not all(math.isfinite(cost) and cost > 0 for cost in costs_ms[1:]):
        raise PlanError(f"CAST {name} must be 0.0 for nothing and positive milliseconds after, got {tuple(costs_ms)}")
