"""How often a visit runs a call, and which of the runs it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from spectune.errors import MeasurementError
from spectune.profiler.clock import Call
from spectune.profiler.records.pooling import LONG_MS
from spectune.profiler.repeats import SETTLED, SHORT_RUN, Repeats, repeats_of


class SettlingCall:
    """A call that takes its listed times one by one, the last for ever, and starts again behind another call."""

    def __init__(self, times: Sequence[float]) -> None:
        self.times, self.runs, self.now_ms = times, 0, 0.0

    def __call__(self) -> None:
        self.now_ms += self.times[min(self.runs, len(self.times) - 1)]
        self.runs += 1

    def now_s(self) -> float:
        return self.now_ms / 1e3

    def time_ms(self, call: Call) -> float:
        start_ms = self.now_ms
        call()
        return self.now_ms - start_ms


def test_a_target_is_timed_once_it_has_settled() -> None:
    call = SettlingCall([3.0, 2.5, 2.2, 2.0])
    assert SETTLED.time_ms(call, call, 2.0) == pytest.approx(2.0)
    assert call.runs == 5  # 6 ms of untimed calls, 4 ms of timed ones


def test_a_drafter_is_timed_from_the_first_call_behind_another_on() -> None:
    call = SettlingCall([0.4, 0.3, 0.2, 0.1])
    assert SHORT_RUN.time_ms(call, call, 0.1) == pytest.approx(0.25)
    assert call.runs == 4


@pytest.mark.parametrize("repeats", [SETTLED, SHORT_RUN])
@pytest.mark.parametrize("call_ms", [0.01, 0.3, 1.0, 3.0, 7.0, LONG_MS, 500.0])
def test_a_visit_takes_what_it_is_said_to(repeats: Repeats, call_ms: float) -> None:
    call = SettlingCall([call_ms])
    repeats.time_ms(call, call, call_ms)
    assert call.now_ms == pytest.approx(repeats.visit_ms(call_ms))


@pytest.mark.parametrize("call_ms", [LONG_MS, 100.0])
def test_a_call_that_fills_the_caches_itself_is_timed_at_once(call_ms: float) -> None:
    assert SETTLED.untimed(call_ms) == 0 and SETTLED.timed(call_ms) == 1


@pytest.mark.parametrize("unknown", [math.nan, 0.0])
def test_a_call_of_unknown_length_is_timed_once(unknown: float) -> None:
    call = SettlingCall([5.0, 4.0, 3.0])
    assert SETTLED.time_ms(call, call, unknown) == pytest.approx(4.0)
    assert call.runs == 2


@pytest.mark.parametrize(
    ("repeats", "call_ms", "is_cooled"),
    [(SHORT_RUN, 1.0, True), (SHORT_RUN, math.nan, True), (SHORT_RUN, LONG_MS, False), (SETTLED, 1.0, False)],
)
def test_a_short_run_of_calls_that_do_not_fill_the_caches_is_cooled(
    repeats: Repeats, call_ms: float, is_cooled: bool
) -> None:
    assert repeats.is_cooled(call_ms) == is_cooled


@pytest.mark.parametrize(("role", "expected"), [("verify", SETTLED), ("prefill", SETTLED), ("exit:2", SETTLED)])
def test_roles_of_a_target_settle(role: str, expected: Repeats) -> None:
    assert repeats_of(role) is expected


@pytest.mark.parametrize("role", ["draft", "head", "block", "self", "loop:4"])
def test_roles_that_draft_do_not(role: str) -> None:
    assert repeats_of(role) is SHORT_RUN


def test_counts_that_time_nothing_are_refused() -> None:
    with pytest.raises(MeasurementError, match="at least 1 call"):
        Repeats(untimed_ms=1.0, timed_ms=1.0, most_untimed=1, most_timed=0)
