"""CAST with thresholds that follow from the costs, not from a hand: calibrated survival, fixed point, search.

In units of one plain forward, keeping a node pays exactly if its survival per cost is at least the tokens per such unit
that the whole round reaches, its host time included. So for calibrated survival the best threshold is that rate itself,
and applying a threshold C, then setting C to the rate it replays to, climbs to it (Dinkelbach). Survival is not
perfectly calibrated and the greedy rules are not exact maximisers, so the fixed point is where the search of the three
thresholds starts.

Source: Hong et al. 2025, arXiv:2510.26577; Dinkelbach 1967, On nonlinear fractional programming.
"""

from __future__ import annotations

from collections.abc import Callable

from ...profiler.records.calibration import SurvivalCurve
from ..pricing.cost import CellCosts
from ..strategies.cast import CastPolicy
from ..strategies.eagle2 import Eagle2Policy
from .knobs import Knobs, Range

STEPS = 4  # of the fixed point; it moves by less than a percent after two or three
SETTLED = 0.01  # relative change of the threshold below which the fixed point is reached
RATIOS = 4  # how many ratios between layers the depth rule averages; the paper's R is not printed
WIDTH, DEPTH, SIZE = 10, 8, 128  # caps: EAGLE's published width and depth, and a verify of any size
SMALLEST = 2  # tokens of a verify that CAST can shape: its root and one more
THRESHOLDS = Range(low=0.01, high=20.0)


def cast_policy(
    costs: CellCosts, drafter: str, children: int, knobs: Knobs, survival: tuple[SurvivalCurve, ...] = ()
) -> CastPolicy:
    """Return CAST on a cell's own cost tables.

    Args:
        costs: of the cell.
        drafter: whose forwards are priced.
        children: best next tokens recorded per node.
        knobs: breadth, depth and rerank thresholds; max_width, max_depth and max_verify_tokens where they are not the
            caps.
        survival: calibrated; the drafter's own confidence where empty.
    """
    draft, verify, context = costs.drafts[drafter], costs.verify, float(costs.cell.context)
    width = min(int(knobs.get("max_width", WIDTH)), children, draft.most_tokens)
    size = min(int(knobs.get("max_verify_tokens", SIZE)), verify.most_tokens)
    return CastPolicy(
        breadth=knobs["breadth"],
        depth=knobs["depth"],
        rerank=knobs["rerank"],
        max_width=width,
        max_depth=int(knobs.get("max_depth", DEPTH)),
        max_verify_tokens=size,
        ratio_window=RATIOS,
        draft_cost_ms=draft.layers(context, width),
        verify_cost_ms=tuple(verify.row(context)[: size + 1].tolist()),
        survival=survival,
    )


def cast_space(children: int, most_tokens: int) -> dict[str, Range]:
    """Return the knobs of CAST.

    Args:
        children: best next tokens recorded per node.
        most_tokens: that one verify can feed.
    """
    return {
        "breadth": THRESHOLDS,
        "depth": THRESHOLDS,
        "rerank": THRESHOLDS,
        "max_width": Range(low=1, high=min(WIDTH, children), is_whole=True),
        "max_depth": Range(low=1, high=DEPTH, is_whole=True),
        "max_verify_tokens": Range(low=SMALLEST, high=min(SIZE, most_tokens), is_whole=True),
    }


def like_eagle2(policy: Eagle2Policy) -> dict[str, float]:
    """Return the knobs with which CAST prunes next to nothing of an EAGLE-2 tree: it can only get better from there."""
    return {
        **uniform(0.0),
        "max_width": policy.top_k,
        "max_depth": policy.depth + 1,
        "max_verify_tokens": policy.max_verify_tokens,
    }


def uniform(threshold: float) -> dict[str, float]:
    """Return the knobs with one value for all three thresholds."""
    inside = THRESHOLDS.nearest(threshold)
    return {"breadth": inside, "depth": inside, "rerank": inside}


def fixed_point(run: Callable[[Knobs], float], unit: float, start: float) -> list[dict[str, float]]:
    """Replay thresholds on their way to the fixed point; return them, the fastest first.

    Args:
        run: prices CAST with such knobs and returns its speed.
        unit: speed whose threshold is 1: of decoding one token per plain forward, without host time, since the cost
            tables that the threshold weighs hold forwards alone.
        start: speed to start from.
    """
    seen: list[tuple[float, dict[str, float]]] = []
    threshold = start / unit
    for _ in range(STEPS):
        knobs = uniform(threshold)
        speed = run(knobs)
        seen.append((speed, knobs))
        if abs(speed / unit - threshold) <= SETTLED * threshold or speed <= 0.0:
            break
        threshold = speed / unit
    return [knobs for _, knobs in sorted(seen, key=lambda one: -one[0])]
