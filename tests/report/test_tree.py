"""Drawn trees: every node once, numbers that do not meet, and means where there is no single tree."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from spectune.planner.plans.plan import PlanCell
from spectune.planner.records.tree import ShapeFacts, TokenTree
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.eagle2 import Eagle2Policy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.planner.strategies.static import StaticPolicy
from spectune.report.figure import Panel
from spectune.report.site.chart import charts
from spectune.report.tree import MOST_TREES, drawn_trees, tree_panel, tree_rows

from ..support.best_trees import best_tree
from ..support.drawn_pages import parsed
from ..support.priced_cells import PLAIN, cell_of, plan_with, priced

TREE = TokenTree(parents=(-1, 0, 0, 0, 1, 1, 2, 4), ranks=(0, 0, 1, 2, 0, 1, 0, 0))
TAKEN = (1.0, 0.6, 0.1, 0.05, 0.4, 0.05, 0.02, 0.3)
SHAPE = ShapeFacts(verified=(3.0, 3.0, 1.0), reached=(0.75, 0.47, 0.3), taken=TAKEN)
EAGLE = Eagle2Policy(verify_tokens=8, depth=2, top_k=3)
MEAN = ShapeFacts(verified=(3.0, 2.5, 0.4), reached=(0.7, 0.4, 0.1))


def cell(policy: TreePolicy, shape: ShapeFacts | None, batch: int = 1, context: int = 10) -> PlanCell:
    return cell_of([PLAIN, priced(policy, 2.0)], batch=batch, context=context, shape=shape)


def panel(policy: TreePolicy, shape: ShapeFacts | None) -> Panel:
    (tree,) = drawn_trees(plan_with(cell(policy, shape))).drawn
    return tree_panel(tree)


FIXED = panel(StaticPolicy(tree=TREE), SHAPE)


def test_every_node_of_a_fixed_tree_is_drawn_once_at_its_depth() -> None:
    assert Counter(mark.x for mark in FIXED.marks) == Counter(TREE.depths)
    assert len({(mark.x, mark.y) for mark in FIXED.marks}) == TREE.size


def test_every_branch_leads_from_its_parent() -> None:
    places = {(mark.x, mark.y) for mark in FIXED.marks}
    strokes = [stroke for line in FIXED.lines for stroke in line.strokes]
    assert len(strokes) == TREE.size - 1
    assert all(start in places and end in places and end[0] == start[0] + 1 for start, end in strokes)


def test_a_first_child_goes_straight_on() -> None:
    level = {stroke[1]: stroke[0][1] == stroke[1][1] for line in FIXED.lines for stroke in line.strokes}
    assert sum(level.values()) == TREE.ranks[1:].count(0)


def test_a_branch_is_the_wider_the_more_rounds_take_it() -> None:
    branches = sorted((line for line in FIXED.lines if line.strokes), key=lambda line: line.shade or 0.0)
    weights = [line.weight for line in branches]
    assert weights == sorted(weights)
    assert {line.shade for line in branches} == set(TAKEN[1:])


def test_a_node_says_its_share() -> None:
    assert "depth 2, first choice\ntaken in 40.0% of rounds" in {mark.text for mark in FIXED.marks}
    assert {note.text for note in FIXED.notes} == {"60%", "10%", "5%", "40%", "2%", "30%"}


def test_a_chain_is_a_straight_line() -> None:
    shape = ShapeFacts(verified=(1.0, 1.0), reached=(0.8, 0.5), taken=(1.0, 0.8, 0.5))
    assert {mark.y for mark in panel(ChainPolicy(length=2), shape).marks} == {0.0}


def test_numbers_of_a_large_tree_do_not_meet() -> None:
    tree = best_tree([0.5, 0.2, 0.1, 0.05], 60)
    taken = tuple(0.9**depth if node else 1.0 for node, depth in enumerate(tree.depths))
    shape = ShapeFacts(verified=(1.0,), reached=(0.9,), taken=taken)
    (chart,) = charts([panel(StaticPolicy(tree=tree), shape)], "p", "table", has_strip=False)
    drawn = parsed(chart)
    notes = [(float(note.attributes["x"]), float(note.attributes["y"])) for note in drawn.all("text", "note-text")]
    assert notes
    assert all(abs(x - u) > 10.0 or abs(y - v) >= 11.0 for (x, y), (u, v) in combinations(notes, 2))


def test_a_fixed_tree_of_unknown_acceptance_is_drawn_without_numbers() -> None:
    found = panel(StaticPolicy(tree=TREE), None)
    assert len(found.marks) == TREE.size and found.notes == ()


def test_a_mean_tree_has_as_many_dots_as_nodes_are_verified() -> None:
    found = panel(EAGLE, MEAN)
    dots = Counter(dot.x for line in found.lines for dot in line.dots)
    assert dots == {1: 3, 2: 3, 3: 1}
    whole = max(dot.size for line in found.lines for dot in line.dots)
    parts = sorted(dot.size / whole for line in found.lines for dot in line.dots if dot.x == 2)
    assert parts == pytest.approx([0.5**0.5, 1.0, 1.0])


def test_a_mean_tree_says_who_reaches_a_depth_and_what_is_verified_there() -> None:
    found = panel(EAGLE, MEAN)
    texts = [note.text for note in found.notes]
    assert texts == ["reached", "verified", "70%", "3.0", "40%", "2.5", "10%", "0.4"]
    assert [mark.text.splitlines()[0] for mark in found.marks[:-1]] == ["depth 1", "depth 2", "depth 3"]


def test_depths_that_hardly_ever_happen_are_cut_off() -> None:
    found = panel(EAGLE, ShapeFacts(verified=(3.0, 0.01, 0.01), reached=(0.7, 0.0001, 0.0)))
    assert found.x.high < 2.0


def test_a_growing_tree_of_unknown_shape_is_not_drawn() -> None:
    assert drawn_trees(plan_with(cell(EAGLE, None))).drawn == ()


def test_plain_decoding_has_no_tree_to_draw() -> None:
    plain = cell_of([PLAIN, priced(EAGLE, 1.0)], chosen=0)
    assert isinstance(plain.policy, PlainPolicy)
    assert drawn_trees(plan_with(plain)).drawn == ()


def test_cells_of_one_policy_share_a_tree() -> None:
    cells = [cell(EAGLE, MEAN, batch=1), cell(EAGLE, MEAN, batch=4), cell(ChainPolicy(length=2), None, batch=8)]
    found = drawn_trees(plan_with(*cells))
    assert [tree.places for tree in found.drawn] == [((1, 10), (4, 10)), ((8, 10),)]


def test_the_same_policy_by_another_drafter_is_another_tree() -> None:
    one = cell(EAGLE, MEAN)
    other = replace(cell(EAGLE, MEAN, batch=2), drafter="medium")
    assert len(drawn_trees(plan_with(one, other)).drawn) == 2


def test_of_many_trees_some_are_left_out_and_counted() -> None:
    cells = [cell(ChainPolicy(length=length), None, batch=length) for length in range(1, MOST_TREES + 3)]
    found = drawn_trees(plan_with(*cells))
    assert (len(found.drawn), found.left_out) == (MOST_TREES, 2)


def test_the_rows_of_a_tree_are_its_depths() -> None:
    (tree,) = drawn_trees(plan_with(cell(EAGLE, MEAN))).drawn
    assert [row[2] for row in tree_rows(tree)] == ["tree, depth 1", "tree, depth 2", "tree, depth 3"]
    assert [row[-2:] for row in tree_rows(tree)] == [("3.00", "70.0%"), ("2.50", "40.0%"), ("0.40", "10.0%")]
