"""CAST: widths, depth and size of the tree from confidence and measured cost, and the search of its thresholds.

In units of one plain forward, a node pays exactly if its survival per cost is at least the tokens per such unit that
the whole round reaches, host time included. So for calibrated survival the best threshold is that rate itself: setting
C to the rate that C replays to climbs to it (Dinkelbach). Survival is not perfectly calibrated and the greedy rules are
not exact maximisers, so the fixed point is only where the search of the three thresholds starts.

Source: Hong et al. 2025, arXiv:2510.26577; Dinkelbach 1967, On nonlinear fractional programming.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ...errors import PlanError
from ...profiler.records.calibration import SurvivalCurve
from ..lockstep import Replay, numbering_of, replayed, room_for
from ..records.costs import PlannedCosts
from ..records.draft import Growth
from ..records.knobs import Knobs, Range
from ..records.ops import Ops
from ..records.recording import Recorded, Recording
from .base import Bounds, Strategy, Trees, require_at_least
from .cast_growth import breadth_origin, grow_cast
from .cast_sweep import cast_walk
from .cast_trees import GrowthParameters, SearchInputs
from .grown import replay_grown
from .naming import name_by
from .offers import HalfStudy, Published, Space

if TYPE_CHECKING:
    from .eagle2 import Eagle2Policy

PAPER = "Hong et al. 2025, arXiv:2510.26577"
PAPER_THRESHOLDS = (4.0, 3.0, 2.5)  # C_1, C_2, C_3; the paper's order is not printed
PAPER_WIDTH, PAPER_DEPTH, PAPER_SIZE = 10, 8, 60  # the paper names no caps; these are EAGLE's
PAPER_RATIOS = 4  # the paper's R is not printed
HAND_SET = (1.0, 2.0, 3.0)  # uniform thresholds that always compete, on the drafter's own confidence
STARTS = 2  # of the fixed point's, that a study begins with
STEPS = 4  # of the fixed point; it moves by less than a percent after two or three
SETTLED = 0.01  # relative change of the threshold below which the fixed point is reached
RATIOS = 4  # how many ratios between layers the depth rule averages; the paper's R is not printed
WIDTH, DEPTH, SIZE = 10, 8, 128  # caps: EAGLE's published width and depth, and a verify of any size
SMALLEST = 2  # tokens of a verify that CAST can shape: its root and one more
THRESHOLDS = Range(low=0.01, high=20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CastPolicy(Strategy):
    """Choose width, depth and size of the tree from confidence and measured cost.

    Costs are in ms with entry 0 = 0.0; the unit of normalised cost is one plain decoding step, `verify_cost_ms[1]`.

    Attributes:
        breadth, depth, rerank: the thresholds C_1, C_2, C_3 in utility per normalised cost, >= 0.
        max_width: most nodes expanded per layer, and most children taken of each.
        max_depth: most layers of nodes, so most drafter forwards.
        ratio_window: how many ratios between layers the depth rule averages (the paper's R).
        draft_cost_ms: drafter step, index = nodes per sequence.
        verify_cost_ms: target step, index = tokens per sequence, root included; of the cheapest padded shape.
        survival: probability that a candidate lies on the target's own path, by its path log-probability: a curve per
            depth, the last for all deeper; utility is their sum. Empty: the drafter's own path probabilities, as in the
            paper. The order of candidates is the drafter's.
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
    is_of_one_cell: ClassVar = True
    search_place: ClassVar = 0
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
        calibrated = "calibrated, " if self.survival else ""
        thresholds = f"{self.breadth:.3g}/{self.depth:.3g}/{self.rerank:.3g}"
        return f"CAST {thresholds}, {calibrated}at most {self.max_verify_tokens}"

    def is_coupled(self, batch: int) -> bool:
        return batch > 1

    @property
    def widths(self) -> tuple[int, ...]:
        return (1,) + (self.max_width,) * (self.max_depth - 1)

    @property
    def bounds(self) -> Bounds:
        depth = min(self.max_depth, self.max_verify_tokens - 1)
        return Bounds(depth=depth, width=self.max_width, tokens=self.max_verify_tokens)

    @property
    def widest_layer(self) -> int:
        return self.max_width

    @property
    def children(self) -> int:
        return self.max_width

    @property
    def sure_width(self) -> int:
        return self.max_width

    def grow(self, ops: Ops[Trees]) -> Growth[Trees]:
        return grow_cast(self, ops)

    def replay(self, recorded: Recorded, batch: int) -> Replay:
        return replay_cast(self, recorded.drafted, batch)

    @classmethod
    def search(cls, hunts: Sequence[HalfStudy]) -> None:
        """Try thresholds set by hand, then search each half from the fixed point and EAGLE-2's trees on."""
        costs = hunts[0].costs
        if not costs.has_host("cast", hunts[0].drafter) or costs.verify.most_tokens < SMALLEST:
            return
        for threshold in HAND_SET:
            hunts[0].enter(cast_policy(costs, hunts[0].drafter, hunts[0].children, uniform(threshold)))
        for hunt in hunts:
            search_half(hunt)

    @classmethod
    def published(cls, costs: PlannedCosts, drafter: str | None, children: int) -> Iterable[Published]:
        if drafter is None:
            return []
        name, made_for = "CAST 4/3/2.5", drafter
        return [Published(name=name, source=PAPER, make=lambda: paper_cast(costs, made_for, children), place=6)]

    @classmethod
    def probes(cls, most_tokens: int) -> list[CastPolicy]:
        width, tokens = 6, min(24, most_tokens)
        uncut = cls(
            breadth=0.0,
            depth=0.0,
            rerank=0.0,
            max_width=width,
            max_depth=5,
            max_verify_tokens=tokens,
            ratio_window=4,
            draft_cost_ms=(0.0, *([1.0] * width)),
            verify_cost_ms=(0.0, *([1.0] * tokens)),
        )
        return [uncut]

    @classmethod
    def smallest(cls) -> list[CastPolicy]:
        return cls.probes(8)


def _require_costs(name: str, costs_ms: Sequence[float], up_to: int) -> None:
    if len(costs_ms) <= up_to:
        raise PlanError(f"CAST {name} must reach {up_to} tokens, got {len(costs_ms) - 1}; measure or cap that far")
    if costs_ms[0] != 0.0 or not all(math.isfinite(cost) and cost > 0 for cost in costs_ms[1:]):
        raise PlanError(f"CAST {name} must be 0.0 for nothing and positive milliseconds after, got {tuple(costs_ms)}")


def replay_cast(policy: CastPolicy, recording: Recording, batch: int) -> Replay:
    """Return the rounds of CAST, whose sequences share widths and size: `replay_grown`, compiled.

    It censors fewer positions: only those that the unrecorded expansion could change. PlanError if slots outnumber
    texts, or the trace has too few children.
    """
    if not recording.is_ordered:
        return replay_grown(policy, recording, batch)
    recording.require_children(policy.max_width)
    rounds = room_for(recording.rows, batch, policy.max_depth)
    setting = SearchInputs(recording.expansions, recording.survivals(policy.survival), _rule(policy))
    return replayed(rounds, *cast_walk(setting, numbering_of(recording.rows), rounds))


def _rule(policy: CastPolicy) -> GrowthParameters:
    plain_ms = policy.verify_cost_ms[1]
    draft_costs = np.array(policy.draft_cost_ms[: policy.max_width + 1]) / plain_ms
    if policy.max_width > 1:
        draft_costs[0] = breadth_origin(draft_costs.tolist())
    return GrowthParameters(
        breadth=policy.breadth,
        depth=policy.depth,
        rerank=policy.rerank,
        max_width=policy.max_width,
        max_depth=policy.max_depth,
        ratio_window=policy.ratio_window,
        draft_costs=draft_costs,
        verify_costs=np.array(policy.verify_cost_ms[1 : policy.max_verify_tokens + 1]) / plain_ms,
    )


def search_half(hunt: HalfStudy) -> None:
    """Search on one half of the texts, with the survival curves that were fitted on it."""
    costs, survival = hunt.costs, hunt.survival
    unit = 1000.0 * costs.cell.batch / float(costs.verify.row(costs.cell.context)[1])

    def policy(knobs: Knobs) -> CastPolicy:
        return cast_policy(costs, hunt.drafter, hunt.children, knobs, survival)

    ranges = cast_space(hunt.children, costs.verify.most_tokens)
    reached = fixed_point(lambda knobs: hunt.price(policy(knobs)), unit, hunt.best_rate)
    widest = {name: range_.high for name, range_ in ranges.items() if range_.is_whole}
    starts = [widest | knobs for knobs in reached[:STARTS]]
    starts += [like_eagle2(beam) for beam in hunt.fastest("eagle2")]
    hunt.study(Space(kind="cast", ranges=ranges, policy=policy, knobs=lambda policy: {}), starts)


def cast_policy(
    costs: PlannedCosts, drafter: str, children: int, knobs: Knobs, survival: tuple[SurvivalCurve, ...] = ()
) -> CastPolicy:
    """Return CAST on a cell's own cost tables.

    `knobs` holds the three thresholds, and max_width, max_depth and max_verify_tokens where they differ from the caps.
    An empty `survival` leaves the drafter's own confidence.
    """
    draft, verify, context = costs.drafting(drafter), costs.verify, float(costs.cell.context)
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
    """Return the ranges of CAST's knobs."""
    return {
        "breadth": THRESHOLDS,
        "depth": THRESHOLDS,
        "rerank": THRESHOLDS,
        "max_width": Range(low=1, high=min(WIDTH, children), is_whole=True),
        "max_depth": Range(low=1, high=DEPTH, is_whole=True),
        "max_verify_tokens": Range(low=SMALLEST, high=min(SIZE, most_tokens), is_whole=True),
    }


def like_eagle2(policy: Eagle2Policy) -> dict[str, float]:
    """Return knobs with which CAST prunes next to nothing of an EAGLE-2 tree, to search on from there."""
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

    `run` prices CAST with such knobs and returns its speed. `unit` is the speed whose threshold is 1: one token per
    plain forward without host time, since the cost tables that the threshold weighs hold forwards alone.
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


def quantised_context(context: int, step: int, longest: int) -> int:
    """Return the context on the grid step, 2 step, ..., longest whose costs stand for `context`.

    select(c) = min(ceil(c / L), M) * L, at least L        with L = step, M = longest / step

    The paper prints (max(floor(c / L), M - 1) + 1) * L. Its `max` would send every context within the grid to M L, so
    `min` is meant. Its floor + 1 would send a context on the grid to the next one, although that context was sampled
    itself. Between the grid's contexts it is the ceiling. PlanError for a context below 0, or no such grid.

    Source: Hong et al. 2025, arXiv:2510.26577, Sec. 4, "select".
    """
    if context < 0 or step < 1 or longest < step or longest % step:
        raise PlanError(
            f"a context of 0 or more is quantised to multiples of a step up to the longest, got {context}, step {step} "
            f"and longest {longest}; take a multiple of the step"
        )
    return min(max(-(-context // step), 1) * step, longest)


def paper_cast(costs: PlannedCosts, drafter: str, children: int, *, step: int = 0, longest: int = 0) -> CastPolicy:
    """Return CAST as its paper runs it: its thresholds, and costs of the quantised context.

    `step` is the paper's L, which it does not print: 0 takes the shortest context measured of the target. `longest` is
    M L: 0 takes the last measured multiple. PlanError if the target was measured at one token only, the grid of
    contexts is none, or the drafter does not run in the cell.
    """
    verify, draft = costs.verify, costs.drafting(drafter)
    width, size = min(PAPER_WIDTH, children, draft.most_tokens), min(PAPER_SIZE, verify.most_tokens)
    if size < 2 or width < 1:
        raise PlanError(f"CAST needs a verify of 2 tokens and a child, got {size} and {width}; measure and record more")
    step = step or max(int(verify.contexts[0]), 1)
    context = quantised_context(costs.cell.context, step, longest or int(verify.contexts[-1]) // step * step)
    breadth, depth, rerank = PAPER_THRESHOLDS
    return CastPolicy(
        breadth=breadth,
        depth=depth,
        rerank=rerank,
        max_width=width,
        max_depth=PAPER_DEPTH,
        max_verify_tokens=size,
        ratio_window=PAPER_RATIOS,
        draft_cost_ms=draft.layers(context, width),
        verify_cost_ms=tuple(verify.row(context)[: size + 1].tolist()),
    )
