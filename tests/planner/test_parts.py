"""Cells solved in groups: a plan is the same however many processes its cells are shared among."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import Plan
from spectune.planner.pricing.cells import Cell
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price_all
from spectune.planner.search.search import solve

from ..support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts

CELLS = [Cell(batch=1, context=50), Cell(batch=3, context=50)]
OPTIONS = SearchOptions(trials=0)
MOST_TOKENS = 12  # verified at batch 3


@cache
def made() -> PlanInputs:
    """Return inputs of a target that verifies three sequences' trees dearly, and none that are large."""
    language = Language(5)
    trace = record(SkilledDrafter(language, 0.9), texts(language, 8, lambda text: 24 + text), every_node(2, 3))
    found = inputs(trace, verify_ms=lambda batch, context, tokens: 10.0 + (0.1 if batch == 1 else 6.0) * tokens)
    ran = tuple(cell for cell in found.verify.measurements if cell.batch == 1 or cell.tokens <= MOST_TOKENS)
    return replace(found, verify=replace(found.verify, measurements=ran))


@cache
def solved(parts: int) -> Plan:
    return solve(made(), CELLS, created="2026-01-01T00:00:00Z", spectune="0.1", options=OPTIONS, parts=parts)


def test_the_cells_have_other_best_chains_and_other_largest_trees() -> None:
    contests = price_all(Rehearsal(made()), CELLS, OPTIONS)
    chains = [set(contest.fastest_by_half("chain", "small")) for contest in contests]
    assert chains[0].isdisjoint(chains[1])
    assert [contest.costs.verify.most_tokens for contest in contests] == [64, MOST_TOKENS]


@pytest.mark.parametrize("part", ["cells", "provenance"])
def test_a_plan_does_not_depend_on_how_many_groups_its_cells_are_solved_in(part: str) -> None:
    assert getattr(solved(2), part) == getattr(solved(1), part)


def test_a_cell_has_the_candidates_that_it_has_alone() -> None:
    together = price_all(Rehearsal(made()), CELLS, OPTIONS)
    for cell, contest in zip(CELLS, together, strict=True):
        (alone,) = price_all(Rehearsal(made()), [cell], OPTIONS)
        assert [one.policy for one in contest.priced] == [one.policy for one in alone.priced]
        assert (contest.searched_on, contest.pruned) == (alone.searched_on, alone.pruned)
        assert contest.left_out() == alone.left_out()
