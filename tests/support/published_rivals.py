"""What published planners would choose, from the same measurements: rivals to compare with, which no plan asks.

Names follow the papers; each function says where the published rule is inexact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spectune.errors import PlanError
from spectune.planner.records.tree import TokenTree

from .best_trees import PricedTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CAST_B_WIDTHS = (15, 31, 47, 63, 95, 127)
CAST_B_FITTED = (16, 128)  # packed tokens of the probe that enter the fit


def sequoia_tree(
    acceptance: Sequence[float],
    sizes: Sequence[int],
    verify_ms: Sequence[float],
    draft_ms: float,
    *,
    max_levels: int = 10,
) -> PricedTree:
    """Return the tree of Sequoia's procedure: the best of every size in a grid and number of levels.

        T[m][l][b] = max over 1 <= y < m of  T[y][l][b - 1] + p_b F(m - y, l - 1),   T[1][l][0] = 1
        F(m, l)    = max over b of T[m][l][b]         exactly m nodes on at most l levels, root included
        minimise over m in sizes and l of (l draft_ms + verify_ms[m]) / F(m, l)

    As published: the root counts as a level, so a tree is charged one draft more than it takes; all drafts of a tree
    cost the same; plain decoding competes only if 1 is among the sizes, and is then charged a draft. One vector holds
    at every depth, and children are used in its order.

    Args:
        acceptance: (ranks,), p_1, p_2, ..: chance that the child is the accepted one, unconditional.
        sizes: the grid, tokens fed to the target.
        verify_ms: by place in the grid.
        draft_ms: of one level.
        max_levels: most levels, root included.

    Raises:
        PlanError: no size, a size below 1 or no time for it, or no tree of these sizes.

    Source: Chen et al. 2024, arXiv:2402.12374, Sec. 3.3 and its public code's tree search.
    """
    if not sizes or min(sizes) < 1 or len(sizes) != len(verify_ms) or max_levels < 1 or not len(acceptance):
        raise PlanError(
            f"Sequoia needs an acceptance, sizes >= 1 with a time each, and a level, got {list(acceptance)}, "
            f"{list(sizes)}, {list(verify_ms)} and {max_levels} levels"
        )
    search = _SequoiaSearch(np.asarray(acceptance, dtype=np.float64), max(sizes), max_levels)
    best: tuple[float, int, int, float] | None = None  # ms per token, size, levels, round
    for size, ms in zip(sizes, verify_ms, strict=True):
        for levels in range(1, max_levels + 1):
            tokens = float(search.values[levels, size])
            round_ms = levels * draft_ms + ms
            if tokens > 0.0 and (best is None or round_ms / tokens < best[0]):
                best = (round_ms / tokens, size, levels, round_ms)
    if best is None:
        raise PlanError(f"no tree of {list(sizes)} nodes fits {max_levels} levels of {len(acceptance)} children")
    _, size, levels, round_ms = best
    return PricedTree(
        tree=search.tree(size, levels), tokens_per_round=float(search.values[levels, size]), round_ms=round_ms
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CastBWidth:
    """What CAST's width rule for block drafters finds.

    Attributes:
        slope_ms: c_1, of the fitted line, per packed token.
        intercept_ms: c_0.
        stop: N at which the rule stops; the number of masses if it does not.
        width: N*, the deployed number of drafted nodes.
    """

    slope_ms: float
    intercept_ms: float
    stop: int
    width: int


def cast_b_width(
    packed_tokens: ArrayLike,
    target_ms: ArrayLike,
    masses: Sequence[float],
    *,
    draft_ms: float = 0.0,
    widths: Sequence[int] = CAST_B_WIDTHS,
) -> CastBWidth:
    """Return the tree width of "Cost-Aware Speculative Trees from One-Pass Block Drafters".

        c_0, c_1 = least squares of target_ms over packed_tokens in [16, 128]
        l(N)     = draft_ms + c_0 + c_1 (N + 1),   g(N) = rho_1 + .. + rho_N
        add node N + 1 while rho_{N+1} >= (g(N) + 1) / l(N) * c_1
        deploy the first width at or above where that stops, or the largest

    As published: the line sees no steps, and the first node that does not pay ends the search.

    Args:
        packed_tokens: (points,), tokens fed in the probe, root included.
        target_ms: (points,), of the target's forward.
        masses: rho_1, rho_2, ..: mean path probability of the n-th best node, falling.
        draft_ms: of the drafter's one forward.
        widths: that can be deployed, in drafted nodes.

    Raises:
        PlanError: fewer than two points to fit, no mass or no width.

    Source: Lee and Eo 2026, arXiv:2610.00321, Theorem 2.
    """
    tokens, ms = np.asarray(packed_tokens, dtype=np.float64), np.asarray(target_ms, dtype=np.float64)
    fitted = (tokens >= CAST_B_FITTED[0]) & (tokens <= CAST_B_FITTED[1])
    if len(np.unique(tokens[fitted])) < 2 or not masses or not widths:
        raise PlanError(
            f"the rule needs two probed token counts in {CAST_B_FITTED}, a mass and a width, got "
            f"{tokens.tolist()}, {len(masses)} masses and {list(widths)}"
        )
    slope, intercept = np.polyfit(tokens[fitted], ms[fitted], 1).tolist()
    stop = _marginal_stop(masses, draft_ms + intercept, slope)
    width = min((width for width in widths if width >= stop), default=max(widths))
    return CastBWidth(slope_ms=slope, intercept_ms=intercept, stop=stop, width=width)


def _marginal_stop(masses: Sequence[float], fixed_ms: float, slope_ms: float) -> int:
    """Return the first N >= 1 whose next node's mass is below the average yield of its cost."""
    total = 0.0
    for nodes, (mass, following) in enumerate(pairwise(masses), start=1):
        total += mass
        if following < (total + 1.0) / (fixed_ms + slope_ms * (nodes + 1)) * slope_ms:
            return nodes
    return len(masses)


class _SequoiaSearch:
    """The recursion's values and choices.

    Attributes:
        values: (levels + 1, nodes + 1), F(m, l) at [l, m]; -inf where there is no such tree.
    """

    def __init__(self, acceptance: Floats, nodes: int, levels: int) -> None:
        children = len(acceptance)
        self.values = np.full((levels + 1, nodes + 1), -np.inf)
        self._first: Ints = np.zeros((levels + 1, children + 1, nodes + 1), dtype=np.int64)  # y
        self._children: Ints = np.zeros((levels + 1, nodes + 1), dtype=np.int64)  # the best b
        rest = np.arange(nodes + 1)[:, None] - np.arange(nodes + 1)  # m - y
        for level in range(1, levels + 1):
            kept = np.full((children + 1, nodes + 1), -np.inf)
            kept[0, 1] = 1.0
            for child in range(1, children + 1):
                below = np.where(rest > 0, self.values[level - 1][rest], -np.inf)
                is_tree = np.isfinite(below)
                gain = np.where(is_tree, acceptance[child - 1] * np.where(is_tree, below, 0.0), -np.inf)
                values = kept[child - 1] + gain
                self._first[level, child] = values.argmax(axis=1)
                kept[child] = values.max(axis=1)
            self._children[level] = kept.argmax(axis=0)
            self.values[level] = kept.max(axis=0)

    def tree(self, size: int, levels: int) -> TokenTree:
        """Return the tree behind F(size, levels), nodes depth first."""
        parents, ranks = [-1], [0]
        pending = [(0, size, levels)]  # node, nodes of its subtree, levels of it
        while pending:
            node, nodes, level = pending.pop()
            for child in range(int(self._children[level, nodes]), 0, -1):
                first = int(self._first[level, child, nodes])
                pending.append((len(parents), nodes - first, level - 1))
                parents.append(node)
                ranks.append(child - 1)
                nodes = first
        return TokenTree(parents=tuple(parents), ranks=tuple(ranks))
