"""Other ways to draft than the plan's, tried now and then, since texts may differ from the recorded ones.

Copies from the text and a model's drafts fail for different reasons. So a cell that copies has its fastest alternative
with a model as a rival, and the other way round. Decoded texts then show which wins (`watch/guard.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..planner.inputs import LOOKUP
from ..planner.plans.plan import Plan, PlanCell
from ..planner.strategies import drafting
from ..planner.strategies.hybrid import HybridPolicy
from ..planner.strategies.stack import StackPolicy
from ..planner.strategies.text import TextPolicy
from .choice import Choice
from .setup import RoundSetup
from .substitutes import alternative_setup, can_run, models_of

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


def _rivals(choice: Choice, plan: Plan, cell: PlanCell, longest_context: int) -> Iterator[RoundSetup]:
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


def _sort(setup: RoundSetup) -> Sort:
    policy = drafting(setup.policy)
    copies = isinstance(policy, HybridPolicy | TextPolicy) or (isinstance(policy, StackPolicy) and policy.has_lookup)
    return bool(models_of(setup)), copies
