"""The search of knobs by Optuna."""

from __future__ import annotations

import pytest

from spectune.errors import PlanError
from spectune.planner.records.knobs import Knobs, Range
from spectune.planner.search.searched import search
from spectune.planner.search.studies import studies_in_memory

SPACE = {"width": Range(low=1, high=10, is_whole=True), "gate": Range(low=0.01, high=1.0)}


class Hill:
    """Highest at width 7 and gate 0.1; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Knobs] = []

    def __call__(self, knobs: Knobs) -> float:
        self.asked.append(dict(knobs))
        return 100.0 - (knobs["width"] - 7) ** 2 - abs(knobs["gate"] - 0.1)


def test_a_study_runs_as_many_trials_as_asked_and_its_starts_first() -> None:
    hill = Hill()
    starts = [{"width": 2.0, "gate": 0.5}, {"width": 99.0, "gate": 5.0}]
    search(studies_in_memory(0)("hill"), SPACE, starts, 12, hill)
    assert len(hill.asked) == 12
    assert hill.asked[:2] == [{"width": 2, "gate": 0.5}, {"width": 10, "gate": 1.0}]


def test_trials_stay_inside_the_space() -> None:
    hill = Hill()
    search(studies_in_memory(0)("hill"), SPACE, [], 30, hill)
    assert all(1 <= knobs["width"] <= 10 and 0.01 <= knobs["gate"] <= 1.0 for knobs in hill.asked)
    assert all(float(knobs["width"]).is_integer() for knobs in hill.asked)


def test_the_same_seed_asks_the_same() -> None:
    first, second = Hill(), Hill()
    for hill in (first, second):
        search(studies_in_memory(3)("hill"), SPACE, [], 15, hill)
    assert first.asked == second.asked


def test_the_search_comes_near_the_top() -> None:
    hill = Hill()
    search(studies_in_memory(0)("hill"), SPACE, [], 60, hill)
    assert max(hill(knobs) for knobs in list(hill.asked)) > 98.0


def test_a_finished_study_spends_no_trial_and_what_it_found_competes_again() -> None:
    study, first, again = studies_in_memory(0)("hill"), Hill(), Hill()
    search(study, SPACE, [], 20, first)
    search(study, SPACE, [], 20, again)
    assert len(study.get_trials()) == 20
    assert sorted(map(str, again.asked)) == sorted(map(str, first.asked))


@pytest.mark.parametrize(("low", "high", "is_whole"), [(3, 2, True), (0.0, 1.0, False), (-1.0, 1.0, False)])
def test_a_range_without_values_is_refused(low: float, high: float, is_whole: bool) -> None:
    with pytest.raises(PlanError, match="low <= high"):
        Range(low=low, high=high, is_whole=is_whole)


def test_a_stopped_study_goes_on_where_it_stopped() -> None:
    study = studies_in_memory(0)("hill")
    search(study, SPACE, [], 5, Hill())
    search(study, SPACE, [], 8, Hill())
    assert len(study.get_trials()) == 8
