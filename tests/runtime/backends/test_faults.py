"""What goes wrong with rounds that run ahead costs their being ahead, or drafts; never a round, and never the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from spectune.runtime.batch.faults import MOST_FAULTS
from spectune.runtime.batch.step_config import always
from spectune.runtime.engine.step_output import StepOutput
from spectune.runtime.models.lean import LeanModel

from ...support.ahead_runs import KINDS, SKETCH, Captured, eagerly, plainly, setup_of, told
from ...support.decoded_runs import Run, random_requests
from ...support.tiny_models import perturbed, tiny_llama

pytestmark = pytest.mark.lossless

REQUESTS = random_requests(5, tokens=20)


def reasons(rounds: list[StepOutput]) -> list[str]:
    return [fault.reason for one in rounds for fault in one.faults]


def failing(kind: str, spoil: Callable[[Captured], None]) -> tuple[Captured, Run]:
    captured = Captured()
    spoil(captured)
    found = captured.run(REQUESTS, always(setup_of(kind)), may_fail=True)
    expected = eagerly(REQUESTS, always(setup_of(kind)))
    assert found.outputs == expected.outputs and told(found.rounds) == told(expected.rounds)
    return captured, found


def once(recorder_is_asked: int) -> Callable[[int], bool]:
    """Return what lets the n-th recording fail, counted from 0, and none behind it."""
    asked = iter(range(10**6))
    return lambda recordings: next(asked) == recorder_is_asked


@pytest.mark.parametrize("kind", KINDS)
def test_a_verification_that_cannot_be_recorded_leaves_rounds_as_they_were(kind: str) -> None:
    def spoil(captured: Captured) -> None:
        captured.targets.fails = once(0)

    captured, found = failing(kind, spoil)
    (reason,) = reasons(found.rounds)
    assert "do not run ahead of the host any more: MemoryError: no room for another recording" in reason
    assert captured.others > 0


def test_rounds_of_fewer_sequences_run_ahead_where_those_of_more_find_no_room() -> None:
    def spoil(captured: Captured) -> None:
        captured.targets.fails = once(0)

    captured, found = failing("plain", spoil)
    alone = [one for one in found.rounds if len(one.kept) == 1]
    assert alone and captured.others == 1 and len(captured.targets.recorded) > 1


def test_greedy_rounds_run_ahead_where_sampled_ones_find_no_room() -> None:
    captured = Captured(slots=1)
    captured.targets.fails = once(2)  # behind both of a greedy round
    mixed = [REQUESTS[0], replace(REQUESTS[1], temperature=0.8), *REQUESTS[2:]]
    found = captured.run(mixed, always(setup_of("chain")), may_fail=True)
    (reason,) = reasons(found.rounds)
    assert found.outputs == plainly(mixed) and reason.startswith("sampled rounds of ")
    assert captured.others > 0 and captured.targets.replays > len(found.rounds) / 2
    behind = [one for one in found.rounds if one.sequences[0] > 1]
    assert captured.others == 1 and len(behind) > 5  # of the sampled rounds alone


@pytest.mark.parametrize("kind", ["chain", "eagle2"])
def test_a_draft_that_cannot_be_recorded_leaves_rounds_as_they_were(kind: str) -> None:
    def spoil(captured: Captured) -> None:
        captured.drafts.fails = once(0)

    assert len(reasons(failing(kind, spoil)[1].rounds)) == 1


@pytest.mark.thinned
@pytest.mark.parametrize("launch", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_that_fails_loses_no_round(kind: str, launch: int) -> None:
    def spoil(captured: Captured) -> None:
        launches = iter(range(10**6))

        def note() -> None:
            if next(launches) == launch:
                raise RuntimeError("the device is out of breath")

        captured.targets.note = note

    found = failing(kind, spoil)[1]
    assert len(reasons(found.rounds)) == 1 and "out of breath" in reasons(found.rounds)[0]


def test_a_drafter_whose_scores_are_no_numbers_is_asked_no_more_after_a_few_rounds() -> None:
    llama = perturbed(SKETCH, 0.0)
    with torch.no_grad():
        llama.lm_head.weight.fill_(torch.nan)
    captured = Captured(drafter_model=LeanModel(llama))
    found = captured.run(REQUESTS, always(setup_of("chain")), may_fail=True)
    assert found.outputs == plainly(REQUESTS)
    assert len(reasons(found.rounds)) == MOST_FAULTS
    assert all("outside the target's vocabulary of 24" in reason for reason in reasons(found.rounds))
    assert {kept for one in found.rounds for kept in one.kept} == {1}
    assert captured.others == 0  # without drafts rounds run ahead all the same


def test_a_drafter_with_tokens_that_the_target_does_not_know_is_asked_no_more_after_a_few_rounds() -> None:
    captured = Captured(drafter_model=LeanModel(tiny_llama(layers=1, seed=3, vocabulary=400)))
    found = captured.run(REQUESTS, always(setup_of("eagle2")), may_fail=True)
    assert found.outputs == plainly(REQUESTS)
    assert MOST_FAULTS <= len(reasons(found.rounds)) < len(found.rounds)
    assert all("outside the target's vocabulary of 24" in reason for reason in reasons(found.rounds))


def test_a_drafter_that_knows_fewer_tokens_than_the_target_drafts_what_it_knows() -> None:
    captured = Captured(drafter_model=LeanModel(tiny_llama(layers=1, seed=3, vocabulary=9)))
    requests = random_requests(5, tokens=20, vocabulary=9)
    found = captured.run(requests, always(setup_of("chain")))
    assert found.outputs == plainly(requests) and captured.others == 0
    assert max(token for text in found.outputs for token in text) >= 9
