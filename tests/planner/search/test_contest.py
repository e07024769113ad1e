"""What a contest says of each half of the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from spectune.planner.lockstep import Replay
from spectune.planner.records.crossfit import EVERYWHERE, texts_of_half
from spectune.planner.search.contest import CellSearch
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy

from ...support.priced_cells import costs, priced

TEXTS = 4
SHORT, MIDDLE, LONG = (ChainPolicy(length=length) for length in (1, 2, 3))
Entry = tuple[TreePolicy, tuple[float, float], int]  # milliseconds of every text of each half, half it was searched on


def contest_of(entries: Sequence[Entry]) -> CellSearch:
    contest = CellSearch(costs=costs(), texts=TEXTS, needs_bytes=lambda policy, drafter: None)
    for policy, ms, searched_on in entries:
        spent = np.where(texts_of_half(TEXTS, 0), *ms)
        contest.priced.append(replace(priced(policy, 1.0), tokens=np.full(TEXTS, 10), ms=spent))
        contest.searched_on.append(searched_on)
    return contest


def test_each_half_has_its_own_fastest() -> None:
    contest = contest_of([(SHORT, (9.0, 20.0), EVERYWHERE), (MIDDLE, (10.0, 10.0), EVERYWHERE), (LONG, (20.0, 9.0), 1)])
    assert contest.fastest_by_half("chain", "small") == {SHORT: 0, LONG: 1}


def test_what_is_fastest_on_both_halves_was_chosen_by_none() -> None:
    contest = contest_of([(SHORT, (9.0, 9.0), EVERYWHERE), (MIDDLE, (10.0, 10.0), EVERYWHERE)])
    assert contest.fastest_by_half("chain") == {SHORT: EVERYWHERE}


def test_what_was_searched_on_a_half_is_not_the_fastest_of_the_other() -> None:
    contest = contest_of([(SHORT, (8.0, 8.0), 0), (MIDDLE, (10.0, 10.0), EVERYWHERE)])
    assert contest.fastest_by_half("chain") == {SHORT: 0, MIDDLE: 1}


def test_a_half_without_steady_rounds_and_another_drafter_have_no_fastest() -> None:
    contest = contest_of([(SHORT, (8.0, 0.0), EVERYWHERE)])
    assert contest.fastest_by_half("chain") == {SHORT: 0}
    assert contest.fastest_by_half("chain", "medium") == contest.fastest_by_half("static") == {}


@pytest.mark.parametrize(("halves", "told"), [((0, 0), 0), ((0, 1), EVERYWHERE), ((EVERYWHERE, 1), EVERYWHERE)])
def test_a_policy_stands_once_whoever_came_to_it(halves: tuple[int, int], told: int) -> None:
    """Found by each half of the texts without the other, it was chosen by none."""
    contest, every = contest_of([]), np.arange(TEXTS)
    one = np.ones(1, dtype=np.int64)
    replay = Replay(
        contexts=100 * one, nodes=2 * one, catch_up=one, widths=one[None], texts=every[None], kept=1 + every[None] // 2,
        censored=0,
    )  # fmt: skip
    first, again = (contest.enter(SHORT, "small", replay, half) for half in halves)
    assert first is again is contest.find(SHORT, "small")
    assert contest.searched_on == [told]
