"""Which cells a plan has where none are asked for: of the batches that texts fill, at contexts of 1 token or more."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from spectune.errors import MeasurementError
from spectune.planner.inputs import PlanInputs
from spectune.planner.plans.plan import Plan
from spectune.tuning.plan import SolveOptions, solve_plan

from ..support.synthetic import inputs, overhead, surface
from .test_plan import REQUEST, recorded

TOO_FEW = "batch 8 has no plan, because only 6 texts were recorded; profile with more prompts"


@cache
def alone(batches: tuple[int, ...], contexts: tuple[int, ...]) -> PlanInputs:
    """Return what was measured of a target without drafters, along 6 texts."""
    verify = surface("large", "verify", lambda batch, context, tokens: 10.0, batches=batches, contexts=contexts)
    return replace(inputs(recorded()), drafters=(), verify=verify, overhead=overhead(0.5, batches))


def planned(found: PlanInputs, **wish: tuple[int, ...]) -> Plan:
    return solve_plan(found, replace(REQUEST, trials=1, **wish), SolveOptions(jobs=1))  # type: ignore[arg-type]


def cells(plan: Plan) -> list[tuple[int, int]]:
    return [(cell.batch, cell.context) for cell in plan.cells]


def test_a_measured_batch_that_the_texts_do_not_fill_is_left_out_and_named() -> None:
    plan = planned(alone((1, 8), (30,)))
    assert cells(plan) == [(1, 30)]
    assert TOO_FEW in plan.provenance.notes


def test_a_batch_that_nobody_asked_for_is_not_named() -> None:
    assert TOO_FEW not in planned(alone((1, 8), (30,)), batches=(1,)).provenance.notes


def test_a_batch_beyond_those_that_were_timed_is_named_with_device_and_what_to_run() -> None:
    found = alone((1, 4), (30,))
    told = re.escape("batch 64 was not timed of large on Abacus (cpu, 2 cores, 2 threads), only 1,4; run: spectune ")
    with pytest.raises(MeasurementError, match=f"{told}profile --target nowhere --batch 4,64$"):
        planned(found, batches=(64, 4))


def test_a_batch_whose_forwards_were_timed_alone_is_left_out_and_named() -> None:
    plan = planned(replace(alone((1, 4), (30,)), overhead=overhead(0.5, (1,))))
    assert cells(plan) == [(1, 30)]
    (note,) = (note for note in plan.provenance.notes if note.startswith("batch 4 has no plan"))
    assert "its forwards were timed alone, or memory had no room" in note and "profile --batch 4" in note


def test_a_batch_whose_forwards_were_timed_alone_does_not_say_where_others_are_planned() -> None:
    found = alone((1, 3), (30, 200))
    elsewhere = surface("large", "verify", lambda *shape: 10.0, batches=(4,), contexts=(900,))
    verify = replace(found.verify, measurements=(*found.verify.measurements, *elsewhere.measurements))
    assert {context for _, context in cells(planned(replace(found, verify=verify)))} == {30, 200}


def test_a_batch_that_was_timed_again_at_another_context_leaves_the_others_theirs() -> None:
    found, again = (alone((3,), (30, 200)), alone((1,), (900,)))
    verify = replace(found.verify, measurements=(*found.verify.measurements, *again.verify.measurements))
    plan = planned(replace(found, verify=verify, overhead=overhead(0.5, (1, 3))))
    assert cells(plan) == [(3, 30), (3, 200), (1, 900)]
    assert any("no context in common (batch 1 at 900; batch 3 at 30, 200)" in note for note in plan.provenance.notes)


@pytest.mark.parametrize("contexts", [(0,), (0, 200)])
def test_an_empty_context_is_planned_with_a_drafter_too(contexts: tuple[int, ...]) -> None:
    found = inputs(recorded())
    (drafter,) = found.drafters
    told = {"batches": (1,), "contexts": contexts}
    timed = replace(drafter, surface=surface("small", "draft", lambda *shape: 1.0, **told))
    verify = surface("large", "verify", lambda *shape: 10.0, **told)
    plan = planned(replace(found, verify=verify, overhead=overhead(0.5, (1,)), drafters=(timed,)))
    assert cells(plan) == [(1, max(context, 1)) for context in contexts]


@pytest.mark.parametrize(
    ("contexts", "wanted"), [((0,), [(1, 1)]), ((0, 1, 30), [(1, 1), (1, 30)]), ((0, 30), [(1, 1), (1, 30)])]
)
def test_an_empty_context_is_planned_as_one_of_a_single_token(
    contexts: tuple[int, ...], wanted: list[tuple[int, int]]
) -> None:
    assert sorted(cells(planned(alone((1,), contexts)))) == wanted
