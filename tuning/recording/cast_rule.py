"""What CAST would expand for one sequence, as a rule of the recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...planner.kernels.beam import last_steep
from ...planner.records.draft import Scores
from ...planner.records.ops import NumpyOps, best_candidates
from ...planner.strategies.cast_growth import Costs, costs_of, survivals
from .growth_rule import Choice, Front, Growth, taken

if TYPE_CHECKING:
    from ...planner.strategies.cast import CastPolicy

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """CAST's widths and depth at batch 1, from the policy's own cost tables; at larger batches only beams help.

    There the sequences share their widths, so expansion depends on who runs together.

    Source: Hong et al. 2025, arXiv:2510.26577, Sec. 4; see `strategies.cast_growth` for the open points of the paper.
    """

    policy: CastPolicy

    @property
    def children(self) -> int:
        """Best next tokens of a node that it looks at."""
        return self.policy.max_width

    def start(self, rows: int) -> Growth:
        """Return fresh trees."""
        costs = costs_of(self.policy)
        return _CastGrowth(policy=self.policy, costs=costs, front=Front.roots(rows), rows=[_Row() for _ in range(rows)])


@dataclass(slots=True)
class _Row:
    ratios: tuple[float, ...] = (1.0,)
    last_utility: float = 0.0
    is_open: bool = True


@dataclass(slots=True)
class _CastGrowth:
    policy: CastPolicy
    costs: Costs
    front: Front
    rows: list[_Row]
    layers: int = 0

    def choose(self, log_probs: Scores) -> Choice:
        self.layers += 1
        most = self.policy.max_width
        candidates = self.front.candidates(log_probs, most)
        order = best_candidates(candidates, most)
        best = np.take_along_axis(candidates, order, axis=1)
        utilities = survivals(self.costs.lines, best, self.layers, NumpyOps(len(best))).cumsum(axis=1)
        widths = np.array([self._width(row, mine) for row, mine in zip(self.rows, utilities, strict=True)])
        is_open = np.array([row.is_open for row in self.rows])
        choice, self.front = taken(candidates, order, np.arange(order.shape[1]) < widths[:, None], is_open)
        return choice

    def _width(self, row: _Row, utilities: Floats) -> int:
        if not row.is_open or self.layers >= self.policy.max_depth:
            row.is_open = False
            return 0
        width = self._kept(utilities)
        utility = float(utilities[width - 1])
        if self.layers > 1:
            ratio = utility / row.last_utility if row.last_utility > 0 else 0.0
            row.ratios = (*row.ratios, ratio)[-self.policy.ratio_window :]
        row.last_utility = utility
        row.is_open = sum(row.ratios) / len(row.ratios) * utility >= self.policy.depth * self.costs.draft[width]
        return width

    def _kept(self, utilities: Floats) -> int:
        """Return n_i: the index scan starts where the line through the costs of 1 and 2 nodes meets no node."""
        if len(utilities) == 1:
            return 1
        costs = np.array(self.costs.breadth)
        return max(1, last_steep(np.append(0.0, utilities), costs, len(utilities), float(self.policy.breadth)))
