from collections.abc import Callable

import pytest

from spectune.profiler.domain import Domain
from spectune.tuning.measuring.trial import (
    HELD_OUT,
    LEAST_BUDGET_S,
    MOST_BUDGET_S,
    MOST_PROBED,
    ForwardTrial,
    TrialCell,
    try_forwards,
)

DOMAIN = Domain(batches=(1, 4), contexts=(40, 400), most_tokens=64)


def trial_of(ms: Callable[[int], float], domain: Domain = DOMAIN) -> ForwardTrial:
    """Return what a trial tells of forwards that take ms(rows)."""
    tokens = (1, 2, 4, 8, 16, 32, 64)
    return ForwardTrial(
        cells=tuple(TrialCell(surface=0, batch=b, tokens=n, ms=ms(b * n)) for b in domain.batches for n in tokens)
    )


def slow_ms(rows: int) -> float:
    return max(70.0, 8.0 * rows)


def test_rows_tell_what_a_forward_takes_between_and_beyond_those_that_were_tried() -> None:
    trial = trial_of(slow_ms)
    assert trial.ms(0, 4) == 70.0 and trial.ms(0, 24) == pytest.approx(192.0)
    assert trial.ms(0, 512) == pytest.approx(8.0 * 512)


def test_slow_models_are_not_timed_where_no_draft_could_pay() -> None:
    (limited,) = trial_of(slow_ms).limited([DOMAIN])
    assert [limited.most(batch) for batch in (1, 4)] == [32, 8]
    assert max(tokens for batch, _, tokens in limited.coarse() if batch == 4) == 8
    assert not limited.holds((4, 100, 9)) and limited.holds((1, 100, 32))


def test_quick_models_are_timed_everywhere() -> None:
    assert trial_of(lambda rows: slow_ms(rows) / 200.0).limited([DOMAIN]) == (DOMAIN,)


@pytest.mark.parametrize(("share", "seconds"), [(0.01, LEAST_BUDGET_S), (0.3, None), (50.0, MOST_BUDGET_S)])
def test_the_budget_grows_with_the_models_between_its_bounds(share: float, seconds: float | None) -> None:
    trial = trial_of(lambda rows: share * slow_ms(rows))
    (limited,) = trial.limited([DOMAIN])
    budget_s = trial.budget_s([limited])
    assert LEAST_BUDGET_S <= budget_s <= MOST_BUDGET_S and seconds in (None, budget_s)


def test_without_a_trial_all_is_timed_for_the_least_budget() -> None:
    assert ForwardTrial().limited([DOMAIN]) == (DOMAIN,) and ForwardTrial().budget_s([DOMAIN]) == LEAST_BUDGET_S


class Runner:
    """Forwards of which all beyond some tokens fail."""

    identity, role, regime, dtype, attention = "model", "verify", "eager", "bfloat16", "sdpa"

    def __init__(self, most: int) -> None:
        self.most = most

    def prepare(self, batch: int, context_tokens: int, tokens: int) -> Callable[[], None]:
        if tokens > self.most:
            raise MemoryError("no room")
        return lambda: None


def test_what_cannot_run_is_left_out_of_a_trial_and_a_model_that_never_runs_ends_it() -> None:
    cells = try_forwards([Runner(4)], [DOMAIN]).cells
    assert {cell.tokens for cell in cells} == {1, 2, 4} and {cell.batch for cell in cells} == {1, 4}
    assert try_forwards([Runner(4), Runner(0)], [DOMAIN, DOMAIN]) == ForwardTrial()


def test_batches_that_pool_their_rows_are_timed_densely_once_and_judged_at_few_shapes() -> None:
    trial = trial_of(slow_ms)
    (limited,) = trial.limited([DOMAIN])
    first, second = (sum(shape[0] == batch for shape in limited.coarse()) for batch in (1, 4))
    assert limited.pools_rows and second == 3 + 2 < first
    assert trial.held_out(30, [DOMAIN]) == HELD_OUT and trial.held_out(4, [DOMAIN]) == 4
    assert trial.probed(32) == MOST_PROBED and trial.probed(8) == 8


def test_models_that_are_quick_to_time_keep_every_shape_that_judges_them() -> None:
    trial = trial_of(lambda rows: slow_ms(rows) / 200.0)
    assert trial.held_out(30, [DOMAIN]) == 30 and trial.probed(32) == 32
