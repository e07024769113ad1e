"""Cells that are run another way than planned, and the padding of their verifications."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spectune.planner.plans.plan import Alternative
from spectune.planner.strategies import TreePolicy
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.exit_chain import ResumedPolicy
from spectune.planner.strategies.plain import PlainPolicy
from spectune.profiler.records.match import match_devices
from spectune.runtime.batch.step_config import StepConfig
from spectune.runtime.fallbacks import in_brief, with_substitutes

from ..support.watched_rounds import choice_of, drafting_plan

LONG, SHORT = ChainPolicy(length=3), ChainPolicy(length=2)


def substitute(planned: TreePolicy, *others: TreePolicy) -> StepConfig:
    """Return how a cell is run, padded to 2 or 4 tokens, whose own drafter is missing."""
    plan = drafting_plan()
    ways = tuple(
        Alternative(label=other.code, policy=other, drafter="other", tokens_per_s=90.0 - place)
        for place, other in enumerate(others)
    )
    cells = (replace(plan.cells[0], policy=planned, drafter="small", alternatives=ways),)
    choice = with_substitutes(choice_of(replace(plan, cells=cells)), lambda name: name != "small", 1000)
    assert choice.plan is not None
    return choice.setup(choice.plan.cells[0])


@pytest.mark.parametrize(
    ("planned", "other", "run_tokens"),
    [
        (LONG, SHORT, (0, 2, 2, 4)),
        (ResumedPolicy(draft=LONG), ResumedPolicy(draft=SHORT), (0, 2, 2, 4)),
        (LONG, ResumedPolicy(draft=SHORT), (0, 2)),
        (ResumedPolicy(draft=LONG), SHORT, (0, 2)),
    ],
)
def test_a_verification_from_states_and_a_whole_one_share_the_padding_of_roots_alone(
    planned: TreePolicy, other: TreePolicy, run_tokens: tuple[int, ...]
) -> None:
    found = substitute(planned, other)
    assert found == StepConfig(policy=other, drafter="other", run_tokens=run_tokens)


def test_where_nothing_else_can_be_run_the_root_is_padded_as_planned() -> None:
    """Of a cell that keeps drafting elsewhere."""
    plan = drafting_plan([(1, 100), (4, 100)])
    first, second = plan.cells
    cells = (replace(first, policy=ResumedPolicy(draft=LONG), alternatives=()), replace(second, drafter="other"))
    choice = with_substitutes(choice_of(replace(plan, cells=cells)), lambda name: name != "small", 1000)
    assert choice.setup(first) == StepConfig(policy=PlainPolicy(), run_tokens=(0, 2))


def test_a_reason_in_brief_names_what_differs_and_counts_cells_without_values() -> None:
    plan = drafting_plan([(1, 100), (4, 100)])
    here = replace(plan.device, threads=(plan.device.threads or 1) + 1)
    match = match_devices(wanted=here, have=plan.device)
    found = replace(choice_of(plan), match=match, reason=f"plan made on same kind of device with {match}")
    cells = (replace(plan.cells[0], drafter="small", alternatives=()), replace(plan.cells[1], drafter="other"))
    missing = replace(found, plan=replace(plan, cells=cells))
    choice = with_substitutes(missing, lambda name: name != "small", 1000)
    assert f"{match}; decodes batch 1, context 100 by " in choice.reason and " instead of " in choice.reason
    assert in_brief(choice) == (
        "plan made on same kind of device with other threads; decodes 1 of 2 cells another way "
        "(spectune -v names what differs)"
    )


def test_a_reason_without_differences_is_its_own_brief() -> None:
    choice = choice_of(drafting_plan())
    assert in_brief(choice) == choice.reason
