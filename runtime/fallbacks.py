"""Substitutes for cells that cannot run as planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..planner.inputs import LOOKUP
from ..planner.plans.plan import Alternative, Plan, PlanCell
from ..planner.plans.schedule import Place
from ..planner.strategies import TreePolicy, drafting
from ..planner.strategies.hybrid import HybridPolicy
from ..planner.strategies.naming import name_of
from ..planner.strategies.plain import PlainPolicy
from ..planner.strategies.stack import StackPolicy
from ..planner.strategies.text import TextPolicy
from .batch.step_config import StepConfig, draft_room, setup_of
from .device_match import in_short
from .plan_choice import Choice, plainly

MOST_ROOM = 4096  # draft tokens of a sequence that caches are ever made for: no plan of ours comes near
REFUSED = "the plan is lossy, and that was not allowed (allow_lossy=True, --allow-lossy)"


def with_substitutes(
    choice: Choice, has: Callable[[str], bool], longest_context: int, *, allow_lossy: bool = False
) -> Choice:
    """Return the choice with a substitute for every cell whose models are missing, or that exceeds the room.

    So has every lossy cell without `allow_lossy`. A substitute is the cell's fastest alternative that can run and was
    priced above plain decoding, else plain decoding. Where no cell drafts any more, the choice is plain decoding,
    without a reason for missing models. `has` tells whether a needed model of the plan can be loaded.
    """
    if choice.plan is None:
        return choice
    found: list[tuple[Place, StepConfig]] = []
    for cell in choice.plan.cells:
        taken = next(way for way in _ways(cell) if can_run(way, cell, has, longest_context, allow_lossy=allow_lossy))
        if (taken.policy, taken.drafter) != (cell.policy, cell.drafter):
            found.append(((cell.batch, cell.context), taken))
    refused = [REFUSED] if choice.plan.is_lossy and not allow_lossy else []
    if not found:
        return choice
    changed = replace(choice, substitutes=tuple(found))
    if _drafts(choice.plan, choice) and not _drafts(choice.plan, changed):
        return plainly("; ".join(["plain decoding, no cell of the plan can be run", *refused]))
    words = in_short(substituted(choice.plan, changed))
    return replace(changed, reason=f"{choice.reason}; decodes {'; '.join([words, *refused])}")


def substituted(plan: Plan, choice: Choice) -> list[str]:
    """Return each cell with a substitute, and that, in words."""
    ways = dict(choice.substitutes)
    return [
        f"batch {cell.batch}, context {cell.context} by {_named(way)} instead of "
        f"{name_of(cell.policy.code, cell.drafter)}"
        for cell in plan.cells
        if (way := ways.get((cell.batch, cell.context))) is not None
    ]


def in_brief(choice: Choice) -> str:
    """Return the reason of a choice in short, without each value that differs from the measured one."""
    words = choice.reason
    if choice.match is not None and choice.match.differences:
        words = words.replace(str(choice.match), choice.match.in_brief)
    if choice.plan is not None and choice.substitutes:
        cells = f"{len(choice.substitutes)} of {len(choice.plan.cells)} cells another way"
        words = words.replace(in_short(substituted(choice.plan, choice)), cells)
    return words if words == choice.reason else f"{words} (spectune -v names what differs)"


def models_of(setup: StepConfig) -> tuple[str, ...]:
    """Return the names of the models a round drafts with."""
    policy = drafting(setup.policy)
    if isinstance(policy, StackPolicy):
        return policy.models
    return () if setup.drafter is None or isinstance(policy, TextPolicy) else (setup.drafter,)


def alternative_setup(cell: PlanCell, other: Alternative) -> StepConfig:
    """Return the setup of one of a cell's alternatives."""
    return StepConfig(policy=other.policy, drafter=other.drafter, run_tokens=_padding(cell, other.policy))


def can_run(
    way: StepConfig, cell: PlanCell, has: Callable[[str], bool], longest_context: int, *, allow_lossy: bool
) -> bool:
    """Return whether a cell can run by a setup: its models are there, it has room, and its loss is allowed."""
    if way.is_lossy and not allow_lossy:
        return False
    if isinstance(way.policy, PlainPolicy) and way.drafter is None:
        return True
    needed = [*models_of(way), *([] if way.classifier is None else [way.classifier])]
    return draft_room([way], cell.batch) < min(longest_context, MOST_ROOM) and all(has(name) for name in needed)


def _ways(cell: PlanCell) -> Iterator[StepConfig]:
    yield setup_of(cell)
    for other in cell.alternatives:
        if other.tokens_per_s > cell.plain.tokens_per_s:
            yield alternative_setup(cell, other)
    yield StepConfig(policy=PlainPolicy(), run_tokens=cell.run_tokens[:2])


def _padding(cell: PlanCell, policy: TreePolicy) -> tuple[int, ...]:
    """Return the cell's padding as far as it is valid for the policy."""
    is_alike = (policy.kind == "resumed") == (cell.policy.kind == "resumed")
    return cell.run_tokens[: policy.max_verify_tokens + 1 if is_alike else 2]


def _drafts(plan: Plan, choice: Choice) -> bool:
    return any(not isinstance(choice.setup(cell).policy, PlainPolicy) for cell in plan.cells)


def _named(way: StepConfig) -> str:
    return name_of(way.policy.code, way.drafter)


Sort = tuple[bool, bool]  # of drafting: whether models are asked, and whether the text is copied from


def with_rivals(choice: Choice, longest_context: int) -> Choice:
    """Return the choice with the rivals of all its cells.

    A rival is the fastest lossless alternative of each sort of drafting but the cell's own. Its drafter must be in use
    in a cell of no larger batch and context, so no decoder holds a model for a rival alone. A model's rival must beat
    plain decoding in the plan; copies need not, since they gain most on other texts. In a plan chosen by whole
    requests, no rival's model may have prompts of its own to read: rounds do not show that cost. Apply it after
    substitutes, with drafters loaded.
    """
    if choice.plan is None:
        return choice
    found = ((cell, tuple(_rivals(choice, choice.plan, cell, longest_context))) for cell in choice.plan.cells)
    return replace(choice, rivals=tuple(((cell.batch, cell.context), rivals) for cell, rivals in found if rivals))


def _rivals(choice: Choice, plan: Plan, cell: PlanCell, longest_context: int) -> Iterator[StepConfig]:
    here = {LOOKUP} | {
        choice.setup(other).drafter
        for other in plan.cells
        if other.batch <= cell.batch and other.context <= cell.context
    }
    taken, reads = {_sort(choice.setup(cell))}, set(models_of(choice.setup(cell)))
    for other in cell.alternatives:
        rival = alternative_setup(cell, other)
        sort = _sort(rival)
        is_able = other.tokens_per_s > cell.plain.tokens_per_s or not models_of(rival)
        if sort in taken or not is_able or rival.drafter is None or rival.drafter not in here:
            continue
        if plan.new_tokens is not None and not reads.issuperset(models_of(rival)):
            continue
        if can_run(rival, cell, lambda name: True, longest_context, allow_lossy=False):
            taken.add(sort)
            yield rival


def _sort(setup: StepConfig) -> Sort:
    policy = drafting(setup.policy)
    copies = isinstance(policy, HybridPolicy | TextPolicy) or (isinstance(policy, StackPolicy) and policy.has_lookup)
    return bool(models_of(setup)), copies
