"""What `spectune validate` says in its table and beside it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spectune.cli.cells import slower_than_plain, validation_facts, validation_table, why_apart
from spectune.cli.report import Settings
from spectune.cli.validate import _tell_apart, _tell_slower
from spectune.planner.plans.validation import Validation, ValidationRow


def measured(tokens_per_s: float, context: int) -> ValidationRow:
    return ValidationRow(
        batch=1, context=context, policy="plain", drafter=None, predicted_tokens_per_s=100.0, interval=(90.0, 110.0),
        measured_tokens_per_s=tokens_per_s, plain_tokens_per_s=80.0,
    )  # fmt: skip


ROWS = (measured(90.0, 10), measured(89.0, 20), measured(111.0, 30))


def test_it_says_what_lies_outside_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    _tell_apart(Settings(), Validation(plan_id=1, rows=ROWS))
    told = capsys.readouterr().err
    assert [f"context {row.context}: outside" in told for row in ROWS] == [False, True, True]


def apart(texts: float, machine: float, rounds: float) -> ValidationRow:
    """Return a row whose speed was made what it is by these factors."""
    row = measured(100.0 * texts * machine * rounds, 10)
    return replace(row, machine_speed=machine, predicted_tokens_per_round=2.0, tokens_per_round=2.0 * texts)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (apart(1.3, 0.9, 1.0), "of these texts a round keeps 30% more tokens than of the profile's"),
        (apart(0.8, 1.1, 1.0), "of these texts a round keeps 20% fewer tokens"),
        (apart(1.1, 0.8, 1.1), "the machine runs 20% fewer forwards a second than in its profile"),
        (apart(1.0, 1.0, 0.7), "30% fewer rounds a second than its forwards and the machine's pace tell"),
        (apart(1.5, 0.75, 0.7), "30% fewer rounds a second"),  # slower, though the texts are far easier
        (apart(0.6, 1.5, 1.4), "the machine runs 50% more forwards"),
        (measured(120.0, 10), "are prompts, lengths and number format those of the profile?"),
    ],
)
def test_what_did_most_of_texts_machine_and_rounds_is_named(row: ValidationRow, told: str) -> None:
    assert told in why_apart(row)


def test_a_plan_beside_which_nothing_is_kept_has_no_number() -> None:
    titles = [validation_table(Validation(plan_id=number, rows=ROWS)).title for number in (3, None)]
    assert [title.split(",")[0] for title in titles] == ["plan 3", "plan"]


def test_the_table_and_the_json_tell_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    known, unknown = apart(1.25, 0.9, 1.1), measured(90.0, 20)
    table = validation_table(Validation(plan_id=1, rows=(known, unknown)))
    shown = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["texts"], row["machine"], row["rounds"]) for row in shown] == [
        ("+25.0%", "-10.0%", "+10.0%"),
        ("", "", ""),
    ]
    facts = json.loads(json.dumps(validation_facts(known), allow_nan=False))
    assert facts["by_texts"] * facts["machine_speed"] * facts["by_rounds"] == pytest.approx(
        facts["measured_tokens_per_s"] / facts["predicted_tokens_per_s"]
    )
    assert validation_facts(unknown)["by_rounds"] is None


def raced(speedup: float, drafter: str | None = "small", context: int = 65) -> ValidationRow:
    return ValidationRow(
        batch=1,
        context=context,
        policy="plain" if drafter is None else "chain of 3",
        drafter=drafter,
        predicted_tokens_per_s=100.0,
        interval=(50.0, 150.0),
        measured_tokens_per_s=100.0,
        plain_tokens_per_s=100.0 / speedup,
    )


@pytest.mark.parametrize("speedup", [0.05, 0.5, 0.97])
def test_a_plan_slower_than_plain_decoding_is_told_loudly_with_what_to_do(
    speedup: float, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Validation(plan_id=3, rows=(raced(1.5), raced(speedup, context=130)))
    _tell_slower(Settings(), done, "path/to/target")
    told = capsys.readouterr().err
    assert "PLAIN DECODING IS FASTER THAN THE PLAN at batch 1, context 130" in told and f"{speedup:.2f} x plain" in told
    assert "context 65" not in told
    assert "spectune run --target path/to/target --plan none" in told and "spectune retire 3" in told
    assert validation_facts(done.rows[1])["plain_is_faster"] is True


@pytest.mark.parametrize("row", [raced(1.5), raced(0.99), raced(0.9, drafter=None)])
def test_a_plan_as_fast_as_plain_decoding_is_not_warned_of(row: ValidationRow) -> None:
    assert slower_than_plain(Validation(plan_id=3, rows=(row,))) == ""
    assert validation_facts(row)["plain_is_faster"] is False
