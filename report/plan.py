"""The picture of a plan: what it promises over plain decoding, beside its rivals, and what its trees look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ..planner.plans.plan import Plan, PlanCell
from ..planner.reasons.facts import heading
from ..planner.strategies.naming import name_by, name_of
from .axis import Axis, axis_of_doublings, axis_of_times, number
from .figure import Figure, Grid, LineSeries, Mark, Panel, Stroke, Symbol
from .tree import DrawnTrees, drawn_trees, tree_panel, tree_rows

PLAN, RUNNER_UP, PLAIN = "the plan", "runner-up", "plain decoding"
MOST_SHADE = 0.75  # of published defaults; shades beyond it are too near to the text's, which is the plan's
COLUMNS = ("batch", "context", "what", "policy", "drafter", "tokens/s", "x plain", "from", "to", "verified", "reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpeed:
    """One speed in one cell: the plan's, or that of something beside it."""

    cell: PlanCell
    what: str  # PLAN, RUNNER_UP or what a published default is called
    policy: str  # its code, or what a published default is called
    drafter: str | None
    tokens_per_s: float

    @property
    def name(self) -> str:
        """Who drafts how."""
        if self.what in (PLAN, RUNNER_UP):
            return name_of(self.policy, self.drafter)
        return name_by(self.policy, self.drafter)

    @property
    def speedup(self) -> float:
        """How many times as fast as plain decoding."""
        if self.what == PLAN:
            return self.cell.prediction.speedup_over_plain
        return self.tokens_per_s / self.cell.plain.tokens_per_s


def plan_figure(plan: Plan) -> Figure:
    """Return the picture of a plan: speed-up over batch, a panel per context, then the trees it drafts."""
    trees = drawn_trees(plan)
    rows = (*(_row(said) for said in _all(plan)), *(row for tree in trees.drawn for row in tree_rows(tree)))
    return Figure(
        title=f"{plan.target.name}: what the plan promises",
        facts=tuple(_facts(plan, trees)),
        panels=_arranged(list(_speedup_panels(plan)), [tree_panel(tree) for tree in trees.drawn]),
        legend=tuple(_legend(plan)),
        grid=Grid(columns=COLUMNS, rows=rows).filled(),
    )


def _all(plan: Plan) -> Iterator[CellSpeed]:
    for cell in plan.cells:
        promise = cell.prediction
        yield CellSpeed(
            cell=cell, what=PLAN, policy=cell.policy.code, drafter=cell.drafter, tokens_per_s=promise.tokens_per_s
        )
        if cell.runner_up is not None:
            other = cell.runner_up
            yield CellSpeed(
                cell=cell, what=RUNNER_UP, policy=other.label, drafter=other.drafter, tokens_per_s=other.tokens_per_s
            )
        for each in cell.published:
            if each.tokens_per_s is not None:
                yield CellSpeed(
                    cell=cell, what=each.name, policy=each.name, drafter=each.drafter, tokens_per_s=each.tokens_per_s
                )


def _speedup_panels(plan: Plan) -> Iterator[Panel]:
    every = list(_all(plan))
    heights = [said.speedup for said in every] + [cell.prediction.speedup_high for cell in plan.cells] + [1.0]
    x = axis_of_doublings("batch", [cell.batch for cell in plan.cells])
    y = axis_of_times("times plain decoding", heights, is_log=False)
    for context in sorted({cell.context for cell in plan.cells}):
        here = [said for said in every if said.cell.context == context]
        yield Panel(title=f"context {context:,}", x=x, y=y, lines=tuple(_lines(here, x)))


def _lines(here: Sequence[CellSpeed], x: Axis) -> Iterator[LineSeries]:
    """Yield the lines of one context, the plan's last, so that it lies on top."""
    batches = sorted({said.cell.batch for said in here})
    published = list(_published(here))
    for place, group in enumerate(published):
        shade = MOST_SHADE * place / max(len(published) - 1, 1)
        strokes = tuple(_strokes(group.said, batches))
        marks = tuple(_mark(said, size=0.75) for said in group.said)
        yield LineSeries(label=group.label, shade=shade, marks=marks, strokes=strokes, weight=0.65)
    edges = ((batches[0], 1.0), (batches[-1], 1.0))
    yield LineSeries(label=PLAIN, shade=None, marks=(), strokes=(edges,), weight=0.6, is_dashed=True)
    for what, size, weight in ((RUNNER_UP, 0.75, 0.65), (PLAN, 1.3, 1.5)):
        own = sorted((said for said in here if said.what == what), key=lambda said: said.cell.batch)
        if own:
            marks = tuple(_mark(said, size=size) for said in own)
            yield LineSeries(label=what, shade=None, marks=marks, strokes=tuple(_strokes(own, batches)), weight=weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Published defaults that are equally fast at every batch: the same policy under several names."""

    label: str  # the shortest of them, and how many more
    said: tuple[CellSpeed, ...]


def _published(here: Sequence[CellSpeed]) -> Iterator[_Group]:
    named: dict[str, list[CellSpeed]] = {}
    for said in here:
        if said.what not in (PLAN, RUNNER_UP):
            named.setdefault(said.what, []).append(said)
    lines = [sorted(own, key=lambda said: said.cell.batch) for own in named.values()]
    lines.sort(key=lambda own: (own[-1].speedup, _speeds_of(own)))
    for _, same in groupby(lines, key=_speeds_of):
        alike = list(same)
        name, *others = sorted((own[0].what for own in alike), key=len)
        yield _Group(label=f"{name}, +{len(others)} alike" if others else name, said=tuple(alike[0]))


def _speeds_of(own: Sequence[CellSpeed]) -> list[tuple[int, float]]:
    return [(said.cell.batch, said.speedup) for said in own]


def _strokes(own: Sequence[CellSpeed], batches: Sequence[int]) -> Iterator[Stroke]:
    speeds = {said.cell.batch: said.speedup for said in own}
    for is_known, part in groupby(batches, key=lambda batch: batch in speeds):
        if is_known:
            yield tuple((batch, speeds[batch]) for batch in part)


def _mark(said: CellSpeed, size: float) -> Mark:
    cell, name = said.cell, said.name
    interval = (cell.prediction.speedup_low, cell.prediction.speedup_high) if said.what == PLAN else (None, None)
    what = f"{said.what}: {name}" if said.what in (PLAN, RUNNER_UP) else name
    return Mark(
        kind="predicted",
        x=cell.batch,
        y=said.speedup,
        low=interval[0],
        high=interval[1],
        size=size,
        text="\n".join((f"batch {cell.batch:,}, context {cell.context:,}", what, *_speeds(said))),
    )


def _speeds(said: CellSpeed) -> Iterator[str]:
    yield f"{said.tokens_per_s:,.1f} tokens/s, {said.speedup:.2f} times plain decoding"
    promise = said.cell.prediction
    if said.what == PLAN:
        yield f"90 % between {promise.speedup_low:.2f} and {promise.speedup_high:.2f}"
    else:
        yield f"{said.tokens_per_s / promise.tokens_per_s:.2f} of the plan's speed"


def _row(said: CellSpeed) -> tuple[str, ...]:
    promise = said.cell.prediction
    interval = (f"{promise.speedup_low:.2f}", f"{promise.speedup_high:.2f}") if said.what == PLAN else ("", "")
    place = (f"{said.cell.batch:,}", f"{said.cell.context:,}")
    speeds = (f"{said.tokens_per_s:,.1f}", f"{said.speedup:.2f}")
    policy = said.name if said.what in (PLAN, RUNNER_UP) else ""
    return (*place, said.what, policy, said.drafter or "", *speeds, *interval, "", "")


def _arranged(speeds: list[Panel], trees: list[Panel]) -> tuple[Panel, ...]:
    if len(speeds) > 1 and trees:
        trees[0] = replace(trees[0], starts_row=True)
    return (*speeds, *trees)


def _facts(plan: Plan, trees: DrawnTrees) -> Iterator[str]:
    sampling = "greedy" if plan.temperature == 0.0 else f"temperature {number(plan.temperature)}"
    yield f"{heading(plan)}, {sampling}"
    if plan.bound is not None:
        broken = sum(not cell.keeps_bound for cell in plan.cells)
        yield f"the fastest that keeps {plan.bound}" + (f"; {broken} cells have none" if broken else "")
    unpriced = sorted({each.name for cell in plan.cells for each in cell.published if each.tokens_per_s is None})
    if unpriced:
        yield f"published defaults without a price somewhere: {', '.join(unpriced)}"
    if trees.drawn:
        more = f"; {trees.left_out} more trees are not drawn" if trees.left_out else ""
        yield f"trees: a line is as wide as the share of rounds that take its token; dots are tokens verified{more}"


def _legend(plan: Plan) -> Iterator[tuple[Symbol, str]]:
    yield "predicted", "predicted speed, the plan's with its 90 % interval"
    if any(cell.published for cell in plan.cells):
        yield "line", "in colour: published defaults, each with its fastest drafter"
