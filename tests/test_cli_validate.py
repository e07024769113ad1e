"""What `spectune validate` says beside its table."""

from __future__ import annotations

import pytest

from spectune.cli.settings import Settings
from spectune.cli.validate import _tell_more
from spectune.planner.plans.validation import Validation, ValidationRow


def measured(tokens_per_s: float, context: int) -> ValidationRow:
    return ValidationRow(
        batch=1, context=context, policy="plain", drafter=None, predicted_tokens_per_s=100.0, interval=(90.0, 110.0),
        measured_tokens_per_s=tokens_per_s, plain_tokens_per_s=80.0,
    )  # fmt: skip


ROWS = (measured(90.0, 10), measured(89.0, 20), measured(111.0, 30))


@pytest.mark.parametrize("is_demo", [True, False])
def test_it_says_whose_prompts_were_measured_and_what_lies_outside_its_interval(
    is_demo: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _tell_more(Settings(), Validation(plan_id=1, rows=ROWS), is_demo=is_demo)
    told = capsys.readouterr().err
    assert ("the demo's evaluation prompts" in told) == is_demo
    assert [f"context {row.context}: outside" in told for row in ROWS] == [False, True, True]
