"""The learning-rate schedule: warm-up, flat, linear decay; impossible runs are refused."""

from __future__ import annotations

from typing import Any

import pytest

from spectune.errors import TrainingError
from spectune.training.trainer import TrainingSettings

SETTINGS = TrainingSettings(steps=100, batch=2, sequence_tokens=8, warmup_steps=10, decay_share=0.4)


@pytest.mark.parametrize(
    ("step", "factor"),
    [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (37, 1.0), (60, 1.0), (61, 39 / 40), (80, 0.5), (99, 1 / 40)],
)
def test_rates_rise_stay_and_fall(step: int, factor: float) -> None:
    assert SETTINGS.lr_factor(step) == pytest.approx(factor)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert TrainingSettings(steps=100, batch=1, sequence_tokens=1, warmup_steps=0).lr_factor(0) == 1.0


def test_a_run_shorter_than_its_warm_up_never_exceeds_either_slope() -> None:
    short = TrainingSettings(steps=4, batch=1, sequence_tokens=1, warmup_steps=10, decay_share=1.0)
    assert [short.lr_factor(step) for step in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.25])


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"steps": 0}, "must be at least 1"),
        ({"batch": 0}, "must be at least 1"),
        ({"sequence_tokens": 0}, "must be at least 1"),
        ({"decay_share": 0.0}, r"decay_share must be in \(0, 1\], got 0.0"),
        ({"decay_share": 1.1}, r"decay_share must be in \(0, 1\], got 1.1"),
    ],
)
def test_impossible_runs_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TrainingError, match=complaint):
        TrainingSettings(**{"steps": 1, "batch": 1, "sequence_tokens": 1, **wrong})
