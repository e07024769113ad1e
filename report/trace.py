"""The picture of an acceptance trace: how good a drafter's choices are, deeper in its tree and down its ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ..planner.kernels.arrays import Ints
from ..profiler.records.acceptance import AcceptanceTrace, PromptTrace
from ..profiler.scored_nodes import path_steps
from .axis import axis_of_shares, axis_of_steps
from .figure import Figure, Grid, LineSeries, Mark, Panel

FEWEST = 20  # positions; a depth with fewer is left out, unless it is the first
FEWEST_PROMPTS = 0.5  # share of the prompts; where fewer reach a depth, it tells of those prompts alone
ASIDE = 0.012  # of the depths: how far lines stand apart, so that no interval hides another
COLUMNS = ("depth", "choices", "share", "from", "to", "positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledShare:
    """One share, and which choices it is the share of."""

    depth: int  # of the drafted token; 1 follows the committed text
    choices: str
    x: float
    share: Share


def trace_figure(trace: AcceptanceTrace, *, target: str) -> Figure:
    """Return the picture of a trace: shares of positions by depth and by rank, with intervals over prompts."""
    found = count_hits(trace)
    depths = _depths_seen(found)
    widths = _widths(trace.children)
    apart = ASIDE * max(depths - 1, 1)
    asides = [apart * (place - (len(widths) - 1) / 2) for place in range(len(widths))]
    by_depth = [_first_choices(found, width, depths, aside) for width, aside in zip(widths, asides, strict=True)]
    by_rank = [_told(found, 1, slice(rank - 1, rank), f"rank {rank}", x=rank) for rank in range(1, trace.children + 1)]
    return Figure(
        title=f"{trace.drafter_name}: how often its choices hold {target}'s token",
        facts=tuple(_facts(trace, found, depths)),
        panels=(_depth_panel(widths, by_depth), _rank_panel(by_rank)),
        legend=(("measured", f"share of positions, with its {CONFIDENCE:.0%} interval over prompts"),),
        grid=Grid(columns=COLUMNS, rows=tuple(_row(told) for told in (*chain.from_iterable(by_depth), *by_rank))),
    )


def _depths_seen(found: Hits) -> int:
    """Return how many depths have enough positions of enough prompts; a deeper one never has more."""
    prompts = (found.positions > 0).sum(axis=0)
    is_told = (found.positions.sum(axis=0) >= FEWEST) & (prompts >= FEWEST_PROMPTS * prompts[0])
    return max(1, int(is_told.sum()))


def _widths(children: int) -> list[int]:
    doublings = [2**power for power in range(8) if 2**power <= children]
    return doublings if children < 1.5 * doublings[-1] else [*doublings, children]


def _first_choices(found: Hits, width: int, depths: int, aside: float) -> list[LabelledShare]:
    words = "first choice" if width == 1 else f"first {width} choices"
    return [_told(found, depth, slice(0, width), words, x=depth + aside) for depth in range(1, depths + 1)]


def _told(found: Hits, depth: int, ranks: slice, choices: str, *, x: float) -> LabelledShare:
    hits = found.hits[:, depth - 1, ranks].sum(axis=1)
    share = share_of(hits, found.positions[:, depth - 1], np.random.default_rng(0))
    return LabelledShare(depth=depth, choices=choices, x=x, share=share)


def _depth_panel(widths: Sequence[int], by_depth: Sequence[list[LabelledShare]]) -> Panel:
    lines = [
        _line(f"{width}", place / max(len(widths) - 1, 1), shares)
        for place, (width, shares) in enumerate(zip(widths, by_depth, strict=True))
    ]
    return Panel(
        title="by depth, where the tree holds the text so far",
        x=axis_of_steps("depth of the drafted token", 1, len(by_depth[0])),
        y=axis_of_shares("the token is among the first ..."),
        lines=tuple(lines),
        label_title="choices",
    )


def _rank_panel(by_rank: Sequence[LabelledShare]) -> Panel:
    return Panel(
        title="by rank, at depth 1",
        x=axis_of_steps("rank, 1 is the drafter's first choice", 1, len(by_rank)),
        y=axis_of_shares("the token has this rank"),
        lines=(_line("", 0.0, by_rank, is_joined=False),),
    )


def _line(label: str, shade: float, shares: Sequence[LabelledShare], *, is_joined: bool = True) -> LineSeries:
    stroke = tuple((told.x, 100.0 * told.share.value) for told in shares)
    return LineSeries(label=label, shade=shade, marks=tuple(map(_mark, shares)), strokes=(stroke,) if is_joined else ())


def _mark(told: LabelledShare) -> Mark:
    share = told.share
    interval = f"{share.value:.1%}, {share.low:.1%} to {share.high:.1%}"
    return Mark(
        kind="measured",
        x=told.x,
        y=100.0 * share.value,
        low=100.0 * share.low,
        high=100.0 * share.high,
        text=f"depth {told.depth}, {told.choices}\n{interval}\n{share.positions:,} positions",
    )


def _row(told: LabelledShare) -> tuple[str, ...]:
    share = told.share
    shares = (f"{value:.1%}" for value in (share.value, share.low, share.high))
    return (f"{told.depth}", told.choices, *shares, f"{share.positions:,}")


def _facts(trace: AcceptanceTrace, found: Hits, depths: int) -> Iterator[str]:
    sampling = "greedy" if trace.temperature == 0.0 else f"temperature {trace.temperature:g}"
    yield f"workload {trace.workload}, {sampling}"
    yield f"{len(trace.prompts):,} prompts, {trace.positions:,} positions, {trace.children} choices recorded per node"
    if depths < found.positions.shape[1]:
        yield f"depths beyond {depths} are left out: too few positions or prompts reach them"


CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hits:
    """Counts of one trace."""

    hits: Ints  # H: (prompts, depths, ranks)
    positions: Ints  # N: (prompts, depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of positions, conditional on the tree holding the target's text so far, and its interval."""

    value: float
    low: float
    high: float
    positions: int


def count_hits(trace: AcceptanceTrace) -> Hits:
    """Return the counts of a trace, to the depth its trees reach along the target's text anywhere."""
    prompts = [_of_prompt(prompt) for prompt in trace.prompts]
    depths = max(len(hits) for hits in prompts)
    hits = np.zeros((len(prompts), depths, trace.children + 1), dtype=np.int64)  # the last rank is a miss
    for place, found in enumerate(prompts):
        hits[place, : len(found)] = found
    return Hits(hits=hits[..., :-1], positions=hits.sum(axis=2))


def share_of(hits: Ints, positions: Ints, rng: np.random.Generator) -> Share:
    """Return the share of positions, (prompts,) not all 0, that are hits, with an interval.

    It is the percentile bootstrap over prompts, since positions of one text are alike. A single prompt tells nothing of
    others: there it is Wilson's over positions, as if independent.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, Sec. 13.3; Wilson 1927, JASA 22(158).
    """
    total = int(positions.sum())
    low, high = _over_prompts(hits, positions, rng) if len(hits) > 1 else _over_positions(int(hits.sum()), total)
    return Share(value=float(hits.sum()) / total, low=low, high=high, positions=total)


def _of_prompt(prompt: PromptTrace) -> Ints:
    """Return (depths, ranks + 1) counts; the last rank is a miss."""
    steps = (np.minimum(ranks, prompt.children) for _, ranks in path_steps(prompt))
    return np.array([np.bincount(ranks, minlength=prompt.children + 1) for ranks in steps])


def _over_prompts(hits: Ints, positions: Ints, rng: np.random.Generator) -> tuple[float, float]:
    drawn = rng.multinomial(
        len(hits), np.full(len(hits), 1.0 / len(hits)), size=RESAMPLES
    )  # times each prompt is drawn
    total = drawn @ positions
    shares = (drawn @ hits)[total > 0] / total[total > 0]
    low, high = np.quantile(shares, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return float(low), float(high)


def _over_positions(hits: int, total: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    found = binomtest(hits, total).proportion_ci(CONFIDENCE, method="wilson")
    return float(found.low), float(found.high)
