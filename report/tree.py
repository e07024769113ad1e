"""The picture of a draft tree and how much of it is taken: the tree itself where it is fixed, else means by depth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..planner.plans.plan import Plan, PlanCell
from ..planner.records.tree import TokenTree
from ..planner.strategies.naming import name_of
from .axis import Axis, axis_of_steps
from .figure import Dot, LineSeries, Mark, Note, Panel, Side

Span = tuple[float, float]

MOST_TREES = 6
MOST_NOTES = 12  # depths that carry numbers
PLOT_HEIGHT = 234.0  # of a panel on a page; the units of the sizes below
NOTE_FROM, NOTE_TO, NODE_HALF = 5.0, 17.0, 4.5  # where a note beside a node begins and ends, half a node
DOT = 3.4  # usual radius of one, in the same units
LEAST_PART = 0.3  # of the size of a dot: a smaller fraction of a node is not to vanish
LEAST_REACHED = 0.0005  # share of rounds; deeper layers that fewer reach are cut off where none is verified much
LEAST_VERIFIED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTree:
    """A policy of a plan and the cells that share it; the first one's shape is drawn."""

    cell: PlanCell
    places: tuple[tuple[int, int], ...]  # (batch, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTrees:
    """The trees there is room for, and how many more the plan has."""

    drawn: tuple[DrawnTree, ...]
    left_out: int


def drawn_trees(plan: Plan) -> DrawnTrees:
    """Return the trees of a plan, each policy once; without those whose shape is neither fixed nor known."""
    found: list[list[PlanCell]] = []
    for cell in plan.cells:
        if cell.drafter is None or (cell.shape is None and cell.policy.fixed_tree is None):
            continue
        same = next((cells for cells in found if _is_same(cells[0], cell)), None)
        if same is None:
            found.append([cell])
        else:
            same.append(cell)
    trees = [DrawnTree(cell=cells[0], places=tuple((cell.batch, cell.context) for cell in cells)) for cells in found]
    return DrawnTrees(drawn=tuple(trees[:MOST_TREES]), left_out=max(len(trees) - MOST_TREES, 0))


def tree_panel(tree: DrawnTree) -> Panel:
    """Return the panel of a tree, depth from left to right."""
    fixed = tree.cell.policy.fixed_tree
    return _mean_panel(tree) if fixed is None else _fixed_panel(tree, fixed)


def tree_rows(tree: DrawnTree) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a tree's depths in the table of a plan's figure."""
    shape, cell = tree.cell.shape, tree.cell
    if shape is None:
        return
    about = (name_of(cell.policy.code, cell.drafter), cell.drafter or "", "", "", "", "")
    for depth, (verified, reached) in enumerate(zip(shape.verified, shape.reached, strict=True), start=1):
        place = (f"{cell.batch:,}", f"{cell.context:,}", f"tree, depth {depth}")
        yield (*place, *about, f"{verified:.2f}", f"{reached:.1%}")


def _is_same(one: PlanCell, other: PlanCell) -> bool:
    return one.policy == other.policy and one.drafter == other.drafter


def _panel(
    tree: DrawnTree, what: str, depth: int, y: Span, lines: Sequence[LineSeries], notes: Iterable[Note]
) -> Panel:
    return Panel(
        title=name_of(tree.cell.policy.code, tree.cell.drafter),
        x=axis_of_steps("depth", 0, depth),
        y=Axis(title=f"{what}; {_where(tree.places)}", low=y[0], high=y[1], ticks=()),
        lines=tuple(lines),
        notes=tuple(notes),
    )


def _where(places: Sequence[tuple[int, int]]) -> str:
    batch, context = places[0]
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"batch {batch:,}, context {context:,}{more}"


def _root(y: float = 0.0) -> LineSeries:
    mark = Mark(kind="node", x=0, y=y, size=1.5, text="the last token of the text so far")
    return LineSeries(label="", shade=None, marks=(mark,))


# --- one tree for every round


def _fixed_panel(tree: DrawnTree, fixed: TokenTree) -> Panel:
    rows, depths = _rows_of(fixed), fixed.depths
    shape = tree.cell.shape
    taken = shape.taken if shape is not None and shape.taken else None
    lines = [_branch(fixed, node, rows, None if taken is None else taken[node]) for node in range(1, fixed.size)]
    most = max(rows)
    room = 0.12 * max(most, 1) + 0.5
    span = (-most - room, room)
    notes: Iterable[Note] = () if taken is None else _shares(fixed, rows, taken, PLOT_HEIGHT / (span[1] - span[0]))
    what = "the tree" if taken is None else "how often each token is taken"
    return _panel(tree, what, max(depths), span, [*lines, _root()], notes)


def _rows_of(tree: TokenTree) -> list[int]:
    """Return the row of each node: a first child goes on in its parent's, every other opens one below all so far."""
    rows = [0] * tree.size
    last = 0
    stack = [0]
    while stack:
        node = stack.pop()
        children = sorted(tree.children(node), key=lambda child: tree.ranks[child])
        if node and rows[node] < 0:
            last += 1
            rows[node] = last
        for place, child in enumerate(children):
            rows[child] = rows[node] if place == 0 else -1
        stack += reversed(children)
    return rows


def _branch(tree: TokenTree, node: int, rows: Sequence[int], share: float | None) -> LineSeries:
    depth, parent = tree.depths[node], tree.parents[node]
    heavy = 0.5 if share is None else share
    said = "" if share is None else f"\ntaken in {share:.1%} of rounds"
    rank = "first choice" if tree.ranks[node] == 0 else f"choice {tree.ranks[node] + 1}"
    mark = Mark(
        kind="node", x=depth, y=-rows[node], size=0.6 + 0.8 * math.sqrt(heavy), text=f"depth {depth}, {rank}{said}"
    )
    stroke = ((depth - 1, -rows[parent]), (depth, -rows[node]))
    return LineSeries(label="", shade=heavy, marks=(mark,), strokes=(stroke,), weight=0.4 + 2.2 * heavy)


def _shares(tree: TokenTree, rows: Sequence[int], taken: Sequence[float], per_row: float) -> Iterator[Note]:
    depths = tree.depths
    occupied: dict[int, list[tuple[float, float]]] = {depth: [] for depth in depths}
    for node, depth in enumerate(depths):
        occupied[depth].append((per_row * rows[node] - NODE_HALF, per_row * rows[node] + NODE_HALF))
    for node in sorted(range(1, tree.size), key=lambda node: -taken[node]):
        at = per_row * rows[node]
        is_straight = rows[node] == rows[tree.parents[node]]
        side: Side = "above" if is_straight else "above right"  # not on the branch that leads here
        low, high = at - NOTE_TO, at - NOTE_FROM
        if all(high <= start or low >= end for start, end in occupied[depths[node]]):
            occupied[depths[node]].append((low, high))
            yield Note(x=depths[node], y=-rows[node], text=_percent(taken[node]), side=side)


# --- a tree that differs from round to round: its mean


def _mean_panel(tree: DrawnTree) -> Panel:
    shape = tree.cell.shape
    assert shape is not None, "only trees of known shape are drawn"
    levels = list(_levels(shape.verified, shape.reached))
    half = max(math.ceil(verified) for verified, _ in levels) / 2.0
    span = (-1.35 * half - 0.6, 1.35 * half + 0.6)
    per_node = PLOT_HEIGHT / (span[1] - span[0])
    lines = [_dots(levels, per_node), *_spine(levels), _root()]
    return _panel(tree, "mean tree", len(levels), span, lines, _numbers(levels, span))


def _levels(verified: Sequence[float], reached: Sequence[float]) -> Iterator[tuple[float, float]]:
    every = list(zip(verified, reached, strict=True))
    kept = [nodes >= LEAST_VERIFIED or share >= LEAST_REACHED for nodes, share in every]
    yield from every[: max(len(kept) - kept[::-1].index(True), 1) if True in kept else 1]


def _dots(levels: Sequence[tuple[float, float]], per_node: float) -> LineSeries:
    size = min(0.36 * per_node / DOT, 1.0)
    dots = []
    for depth, (verified, _) in enumerate(levels, start=1):
        for index in range(math.ceil(verified)):
            part = min(verified - index, 1.0)
            dots.append(Dot(x=depth, y=_place(index), size=size * max(math.sqrt(part), LEAST_PART)))
    return LineSeries(label="", shade=0.0, marks=(), dots=tuple(dots))


def _place(index: int) -> float:
    return (index + 1) // 2 * (1.0 if index % 2 else -1.0)


def _spine(levels: Sequence[tuple[float, float]]) -> Iterator[LineSeries]:
    for depth, (verified, reached) in enumerate(levels, start=1):
        about = f"depth {depth}\n{verified:.2f} tokens verified on average\ntaken in {reached:.1%} of rounds"
        mark = Mark(kind="node", x=depth, y=0.0, size=0.7 + 1.1 * math.sqrt(reached), text=about)
        stroke = ((depth - 1, 0.0), (depth, 0.0))
        yield LineSeries(label="", shade=reached, marks=(mark,), strokes=(stroke,), weight=0.4 + 3.2 * reached)


def _numbers(levels: Sequence[tuple[float, float]], span: Span) -> Iterator[Note]:
    low, high = span[0] + 0.05 * (span[1] - span[0]), span[1] - 0.05 * (span[1] - span[0])
    left = axis_of_steps("depth", 0, len(levels)).low
    yield Note(x=left, y=high, text="reached", side="left", is_faint=True)
    yield Note(x=left, y=low, text="verified", side="left", is_faint=True)
    step = math.ceil(len(levels) / MOST_NOTES)
    for depth, (verified, reached) in enumerate(levels, start=1):
        if (depth - 1) % step == 0:
            yield Note(x=depth, y=high, text=_percent(reached), side="middle")
            yield Note(x=depth, y=low, text=f"{verified:.1f}", side="middle", is_faint=True)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 or share == 0.0 else "<1%"
