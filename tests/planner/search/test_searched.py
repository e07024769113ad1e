"""Knobs searched per cell: what a study sees, and that what it finds competes."""

from __future__ import annotations

from functools import cache

import numpy as np
import optuna
import pytest

from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.objective import LatencyBound
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.crossfit import EVERYWHERE, HALVES, texts_of_half
from spectune.planner.replay.rehearsal import Rehearsal
from spectune.planner.search.contest import CellSearch
from spectune.planner.search.options import SearchOptions
from spectune.planner.search.price import price_all
from spectune.planner.search.searched import Searcher
from spectune.planner.search.studies import studies_in_memory
from spectune.planner.strategies.cast import CastPolicy

from ...support.synthetic import Language, SkilledDrafter, every_node, inputs, record, texts

CELL = Cell(batch=1, context=20)


@cache
def made() -> PlanInputs:
    """Two children down to CAST's own depth, so that none of its trees is censored."""
    language = Language(5)
    drafter, pairs = SkilledDrafter(language, 0.85), texts(language, 8, lambda text: 16)
    return inputs(record(drafter, pairs, every_node(7, 2), children=2))


class Shelf:
    """Opens studies in memory and remembers them."""

    def __init__(self) -> None:
        self.studies: dict[str, optuna.Study] = {}
        self._open = studies_in_memory(0)

    def __call__(self, name: str) -> optuna.Study:
        return self.studies.setdefault(name, self._open(name))


def searched(options: SearchOptions, shelf: Shelf) -> CellSearch:
    rehearsal = Rehearsal(made())
    (contest,) = price_all(rehearsal, [CELL], options)
    Searcher(options=options, studies=shelf, rehearsal=rehearsal).search(contest)
    return contest


def test_a_study_per_kind_and_half_runs_its_share_of_the_trials() -> None:
    shelf = Shelf()
    searched(SearchOptions(trials=5), shelf)
    casts = [study for name, study in shelf.studies.items() if " cast " in name]
    assert sorted(len(study.get_trials()) for study in casts) == [2, 3]


def test_without_trials_no_study_is_opened_but_the_fixed_point_competes() -> None:
    shelf = Shelf()
    contest = searched(SearchOptions(trials=0), shelf)
    assert not shelf.studies
    calibrated = [one for one in contest.priced if isinstance(one.policy, CastPolicy) and one.policy.survival]
    assert calibrated


def test_what_was_searched_says_on_which_half() -> None:
    contest = searched(SearchOptions(trials=4), Shelf())
    halves = {half for one, half in zip(contest.priced, contest.searched_on, strict=True) if one.policy.kind == "cast"}
    assert halves == {EVERYWHERE, *range(HALVES)}


def test_a_trials_value_is_the_speed_on_its_own_half_alone() -> None:
    shelf = Shelf()
    contest = searched(SearchOptions(trials=4), shelf)
    (study,) = [study for name, study in shelf.studies.items() if " cast " in name and name.endswith("half 1")]
    own = texts_of_half(len(made().texts), 1)
    speeds = {
        1000.0 * one.tokens[own].sum() / one.ms[own].sum()
        for one, half in zip(contest.priced, contest.searched_on, strict=True)
        if half == 1
    }
    assert all(np.isclose(trial.value or 0.0, list(speeds)).any() for trial in study.get_trials())


def test_solved_cast_is_no_slower_than_the_best_eagle2_tree_of_its_own_half() -> None:
    contest = searched(SearchOptions(trials=8), Shelf())
    own = texts_of_half(len(made().texts), 0)

    def speed(kind: str, halves: tuple[int, ...]) -> float:
        return max(
            float(one.tokens[own].sum() / one.ms[own].sum())
            for one, half in zip(contest.priced, contest.searched_on, strict=True)
            if one.policy.kind == kind and half in halves
        )

    assert speed("cast", (0,)) >= speed("eagle2", (EVERYWHERE,)) * (1.0 - 1e-9)


def test_a_policy_that_breaks_the_bound_is_worth_nothing_to_a_study() -> None:
    shelf = Shelf()
    searched(SearchOptions(trials=4, bound=LatencyBound(metric="p90_itl", most_ms=1e-3)), shelf)
    assert {trial.value for study in shelf.studies.values() for trial in study.get_trials()} <= {0.0}


def test_other_limits_are_other_studies() -> None:
    shelf = Shelf()
    searched(SearchOptions(trials=2), shelf)
    names = set(shelf.studies)
    searched(SearchOptions(trials=2, max_memory_bytes=2**40), shelf)
    assert names.isdisjoint(set(shelf.studies) - names)
    assert len(shelf.studies) == 2 * len(names)


@pytest.mark.parametrize("texts_count", [2, 5, 16])
def test_halves_share_no_text(texts_count: int) -> None:
    first, second = texts_of_half(texts_count, 0), texts_of_half(texts_count, 1)
    assert (first ^ second).all()
