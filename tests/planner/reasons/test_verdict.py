"""The verdict of a plan: how to decode, how much faster that is with its interval, and up to which batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.planner.plans.objective import LatencyBound
from spectune.planner.plans.plan import PlanCell
from spectune.planner.reasons.verdict import verdict_lines, warnings_of
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.naming import name_of

from ...support.priced_cells import PLAIN, cell_of, plan_with, priced

CHAIN = priced(ChainPolicy(length=3), 2.5)
LOSING = priced(ChainPolicy(length=3), 1.2)  # of 12.5 ms a round, plain decoding takes 8.5
NAME = name_of(ChainPolicy(length=3).code, "small")


def drafted(batch: int, context: int = 100) -> PlanCell:
    return cell_of([PLAIN, CHAIN], batch=batch, context=context)


def plain(batch: int, context: int = 100) -> PlanCell:
    return cell_of([PLAIN, LOSING], 0, batch=batch, context=context)


def numbers(cell: PlanCell) -> str:
    promise = cell.prediction
    return f"{promise.speedup_over_plain:.2f} x ({promise.speedup_low:.2f} to {promise.speedup_high:.2f})"


def test_it_names_the_way_its_speed_up_and_interval_and_the_batch_above_which_it_stops_paying() -> None:
    lines = verdict_lines(plan_with(drafted(1), drafted(4), plain(16)))
    # speed-ups of 2.5 * 8.5 / 12.5 = 1.70 at batch 4 and 1.2 * 8.5 / 12.5 = 0.816 at 16 cross at 4 * 4 ** 0.723 = 10.9
    assert lines == [f"batch 1: {NAME}, {numbers(drafted(1))}; stops paying above batch 10"]
    assert ", 1.70 x (" in lines[0]


@pytest.mark.parametrize(
    ("cells", "end"),
    [
        ([drafted(1)], ""),
        ([drafted(1), drafted(8)], "; pays up to batch 8, the largest planned"),
        ([drafted(1), plain(2)], "; stops paying above batch 1"),
        ([drafted(1), plain(4), drafted(8)], "; pays up to batch 8, the largest planned; not at batch 4"),
        ([drafted(1), cell_of([PLAIN, CHAIN], 0, batch=4)], "; stops paying above batch 3"),  # within noise at 4
    ],
)
def test_the_end_is_within_what_was_planned(cells: list[PlanCell], end: str) -> None:
    assert verdict_lines(plan_with(*cells)) == [f"batch 1: {NAME}, {numbers(drafted(1))}{end}"]


def test_it_begins_with_the_smallest_batch_that_speculates() -> None:
    (line,) = verdict_lines(plan_with(plain(1), drafted(4)))
    assert line.startswith(f"batch 4: {NAME}, ")
    assert line.endswith("; not at batch 1")


@pytest.mark.parametrize(("batches", "words"), [((1,), "batch 1"), ((1, 4, 8), "batch 1 to 8")])
def test_where_no_batch_speculates_it_says_so(batches: tuple[int, ...], words: str) -> None:
    assert verdict_lines(plan_with(*map(plain, batches))) == [f"{words}: plain decoding, no drafter pays"]


def test_each_context_has_its_line() -> None:
    lines = verdict_lines(plan_with(drafted(1), drafted(4), plain(1, 900), plain(4, 900)))
    assert [line.partition(",")[0] for line in lines] == ["context 100", "context 900"]
    assert lines[1] == "context 900, batch 1 to 4: plain decoding, no drafter pays"


@pytest.mark.parametrize(("context", "is_far"), [(900, True), (120, False), (50, False)])
def test_a_context_far_beyond_those_that_were_timed_is_a_warning(context: int, is_far: bool) -> None:
    (told,) = warnings_of(plan_with(replace(drafted(1, context), priced_at=100))) or [""]
    assert ("context 900 is priced as 100, the longest that was timed" in told) is is_far
    assert bool(told) is is_far


def test_a_bound_that_nothing_keeps_is_a_warning() -> None:
    kept = replace(plan_with(drafted(1)), bound=LatencyBound(metric="itl", most_ms=1.0))
    assert warnings_of(kept) == []
    missed = replace(kept, cells=(replace(drafted(1), keeps_bound=False, latency_ms=5.0),))
    (told,) = warnings_of(missed)
    assert told.startswith("itl<=1ms cannot be reached in 1 of 1 cells (batch 1, context 100: 5")
    assert verdict_lines(missed)[-1] == told


def test_timings_that_are_far_off_are_a_warning() -> None:
    sound = plan_with(drafted(1))
    (cell,) = sound.cells
    errors = replace(cell.prediction.errors, surfaces=5.5)
    doubtful = replace(sound, cells=(replace(cell, prediction=replace(cell.prediction, errors=errors)),))
    (warning,) = set(verdict_lines(doubtful)) - set(verdict_lines(sound))
    assert "off by about 550%" in warning and "profile again" in warning
