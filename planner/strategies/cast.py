"""CAST: widths, depth and size of the tree from confidence and measured cost. Source: Hong et al., arXiv:2510.26577."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...errors import PlanError
from ...profiler.records.calibration import SurvivalCurve
from .base import Bounds, Strategy, name_by, require_at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class CastPolicy(Strategy):
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

    complexity: ClassVar = 4
    hangs_on_scores: ClassVar = True
    names: ClassVar = {
        r"CAST .*at most (?P<nodes>\d+)": lambda found, drafter: (
            name_by(f"tree of up to {found['nodes']} nodes", drafter) + " (CAST)"
        )
    }

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

    def is_coupled(self, batch: int) -> bool:
        """Say whether sequences share widths and size: always when there are several."""
        return batch > 1

    @property
    def widths(self) -> tuple[int, ...]:
        """Most nodes of every drafter forward that can run: one per layer."""
        return (1,) + (self.max_width,) * (self.max_depth - 1)

    @property
    def bounds(self) -> Bounds:
        """How deep, wide and large its trees can become."""
        depth = min(self.max_depth, self.max_verify_tokens - 1)
        return Bounds(depth=depth, width=self.max_width, tokens=self.max_verify_tokens)

    @property
    def widest_layer(self) -> int:
        """Most tokens per sequence that one forward has logits for."""
        return self.max_width

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return self.max_width

    @property
    def sure_width(self) -> int:
        """A width that one of its forwards has for sure."""
        return self.max_width


def _require_costs(name: str, costs_ms: Sequence[float], up_to: int) -> None:
    if len(costs_ms) <= up_to:
        raise PlanError(f"CAST {name} must reach {up_to} tokens, got {len(costs_ms) - 1}; measure or cap that far")
    if costs_ms[0] != 0.0 or not all(math.isfinite(cost) and cost > 0 for cost in costs_ms[1:]):
        raise PlanError(f"CAST {name} must be 0.0 for nothing and positive milliseconds after, got {tuple(costs_ms)}")
